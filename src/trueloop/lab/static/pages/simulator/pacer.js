// @ts-check
// Paces runs: their speed, and their synchronisation.

/** @typedef {import("./run.js").Run} Run */

/** Speeds in updates per second with their names; 0 = as fast as possible. */
export const SPEEDS = /** @type {[number, string][]} */ ([[0, "full speed"], [60, "60 updates/s"], [10, "10 updates/s"], [2, "2 updates/s"]]);
const MAX_AHEAD_S = 0.25; // how far one of several synchronised runs may be ahead

/** Controls the speed of runs: they get a few updates at a time; a single run at full speed runs without a limit.
 * @param {() => Run[]} runs */
export function createPacer(runs) {
  let speed = 0, training = false, targetUpdate = 0, startedAt_ms = 0, startUpdate = 0;

  const highestWindow = () => Math.max(...runs().map(({ window }) => window));
  const lowestActiveWindow = () => Math.min(...runs().filter(({ ended }) => !ended).map(({ window }) => window), Infinity);

  return {
    get training() { return training; },
    /** True for a single run at full speed. */
    get isUnlimited() { return !speed && runs().length === 1; },
    /** @param {number} perSecond */
    setSpeed(perSecond) {
      speed = perSecond;
      if (training) this.play();
    },
    play() {
      training = true;
      targetUpdate = startUpdate = highestWindow();
      startedAt_ms = performance.now();
      if (this.isUnlimited) runs()[0].send("run");
      else this.tick();
    },
    /** Pause all runs at the same update. */
    pause() {
      training = false;
      for (const run of runs()) run.send("pause");
      if (runs().length > 1) for (const run of runs()) run.send("run_until", { update: Math.max(highestWindow(), targetUpdate) });
    },
    /** @param {number} [count] updates */
    step(count = 1) {
      training = false;
      const next = highestWindow() + count;
      for (const run of runs()) run.send("run_until", { update: next });
    },
    /** Stop sending updates to the runs, because other runs start. */
    stop() { training = false; },
    /** Let the runs continue if they may; to be called regularly and for each frame. */
    tick() {
      if (!training || (!speed && runs().length === 1)) return;
      const lowest = lowestActiveWindow();
      if (lowest === Infinity) return;
      let next = targetUpdate;
      if (speed) next = startUpdate + Math.ceil((performance.now() - startedAt_ms) / 1000 * speed);
      else {
        const rate = Math.min(...runs().map(({ header }) => header?.updates_per_s || 20));
        const ahead = Math.max(4, Math.round(rate * MAX_AHEAD_S));
        if (lowest + ahead / 2 >= targetUpdate) next = lowest + ahead;
      }
      if (next <= targetUpdate) return;
      targetUpdate = speed ? Math.min(next, lowest + Math.max(2, speed)) : next;
      for (const run of runs()) run.send("run_until", { update: targetUpdate });
    },
  };
}
