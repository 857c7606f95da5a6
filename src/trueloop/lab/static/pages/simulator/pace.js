// @ts-check
// The speed of the runs, and synchronisation of two.

/** @typedef {import("./run.js").Run} Run */

/** Names of the speeds, in updates per second; 0 = as fast as the machine. */
export const SPEEDS = /** @type {[number, string][]} */ ([[0, "full speed"], [60, "60 updates/s"], [10, "10 updates/s"], [2, "2 updates/s"]]);
const MAX_AHEAD_S = 0.25; // how far one of two synchronised runs may be ahead

/** Continues runs in small portions to control their speed; a single run at full speed continues freely.
 * @param {() => Run[]} runs */
export function pace(runs) {
  let speed = 0, goes = false, goal = 0, began_ms = 0, from = 0;

  const front = () => Math.max(...runs().map(({ update }) => update));
  const behind = () => Math.min(...runs().filter(({ ended }) => !ended).map(({ update }) => update), Infinity);

  return {
    get goes() { return goes; },
    /** @param {number} perSecond */
    at(perSecond) {
      speed = perSecond;
      if (goes) this.play();
    },
    play() {
      goes = true;
      goal = from = front();
      began_ms = performance.now();
      if (!speed && runs().length === 1) runs()[0].send("run");
      else this.tick();
    },
    /** Pause all runs at the same update. */
    pause() {
      goes = false;
      for (const run of runs()) run.send("pause");
      if (runs().length > 1) for (const run of runs()) run.send("run_until", { update: Math.max(front(), goal) });
    },
    /** @param {number} [count] updates */
    step(count = 1) {
      goes = false;
      const next = front() + count;
      for (const run of runs()) run.send("run_until", { update: next });
    },
    /** Stop, because another run starts. */
    stop() { goes = false; },
    /** Must be called regularly and for each frame. */
    tick() {
      if (!goes || (!speed && runs().length === 1)) return;
      const slowest = behind();
      if (slowest === Infinity) return;
      let next = goal;
      if (speed) next = from + Math.ceil((performance.now() - began_ms) / 1000 * speed);
      else {
        const rate = Math.min(...runs().map(({ header }) => header?.updates_per_s || 20));
        const ahead = Math.max(4, Math.round(rate * MAX_AHEAD_S));
        if (slowest + ahead / 2 >= goal) next = slowest + ahead;
      }
      if (next <= goal) return;
      goal = speed ? Math.min(next, slowest + Math.max(2, speed)) : next;
      for (const run of runs()) run.send("run_until", { update: goal });
    },
  };
}
