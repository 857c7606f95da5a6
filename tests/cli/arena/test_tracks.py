from trueloop.lab.arena.tracks import TRACKS


def test_the_tracks_and_every_setting_are_listed(call):
    code, out, err = call("tracks")
    assert (code, err) == (0, "")
    assert all(f"{track.name}: {track.title}" in out for track in TRACKS.values())
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line}
    assert lines["lr"].startswith("0.1 1e-05 to 10 highest learning rate")
    assert lines["optimizer"].startswith('"sgd" sgd nester')


def test_json_has_tracks_and_settings(call_json):
    _, record = call_json("tracks")
    assert [(track["name"], track["target"]) for track in record["tracks"]] == [
        (track.name, track.target) for track in TRACKS.values()
    ]
    assert {field["name"] for field in record["settings"]} >= {"optimizer", "lr", "batch", "warmup"}
