"""`trueloop export` and `trueloop predict` on a real, tiny run."""

import json

import numpy as np
import pytest
import torch

from trueloop.app.export.export_run import capture_samples, infer_answer, sample_batches
from trueloop.app.export.trained_model import load_trained_model
from trueloop.cli.app import main
from trueloop.core.errors import InvalidConfig, InvalidData, InvalidModel, RunFolderError
from trueloop.export.exported_model import Model
from trueloop.recipes import registry, tabular
from trueloop.recipes.recipe import Parts

TRAIN = ["--epochs", "1", "--options.width", "4", "--ema", "0.9", "--workers", "0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from trueloop.runs import curves, html_page

    patch = pytest.MonkeyPatch()
    patch.setattr(curves, "save_panels", lambda panels, title, path_png: path_png.write_bytes(b""))
    patch.setattr(html_page, "render_svg", lambda panel: '<svg viewBox="0 0 1 1"></svg>')
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", "tabular", *TRAIN, "--run-dir", str(root / "one"), "--log-format", "plain"]) == 0
    patch.undo()
    return root


@pytest.fixture(scope="module")
def artifact(runs):
    assert main(["export", "one", "--to", "pt2", "--root", str(runs)]) == 0
    return runs / "one" / "export" / "pt2"


def test_an_exported_run_records_its_options_and_origin(runs, artifact, capsys):
    source = load_trained_model("one", runs)
    manifest = json.loads((artifact / "manifest.json").read_text())
    assert manifest["metadata"]["run"]["id"] == source.run_id
    assert manifest["metadata"]["run"]["weights"] == "final"
    assert manifest["metadata"]["model"]["parameters"] == sum(each.numel() for each in source.parts.model.parameters())
    assert manifest["reading"]["columns"][0] == "mean radius"
    assert manifest["answer"]["labels"] == ["malignant", "benign"]
    rows = torch.stack([source.parts.test[index][0] for index in range(6)])
    with torch.no_grad():
        expected = source.parts.model.eval()(rows)
    found = Model.open(artifact).run([(row,) for row in rows.numpy()])
    torch.testing.assert_close(torch.stack([each[0] for each in found]), expected)
    assert main(["export", "one", "--to", "pt2", "--root", str(runs), "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["artifact"].endswith("pt2-2"), "an existing export is not overwritten"
    assert second["parity"]["difference"] <= second["parity"]["allowed"]


def test_a_checkpoint_is_exported_with_its_averaged_weights(runs, tmp_path, capsys):
    (checkpoint,) = (runs / "one" / "checkpoints").glob("update-*")
    assert main(["export", str(checkpoint), "--to", "pt2", "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["artifact"] == str(tmp_path / "out")
    last, final = load_trained_model(str(checkpoint), runs), load_trained_model("one", runs)
    assert last.weights.source == checkpoint.name
    for name, value in final.weights.tensors.items():
        torch.testing.assert_close(last.weights.tensors[name], value, rtol=0, atol=0)


def test_a_used_folder_and_a_run_without_recipe_are_refused(runs, artifact, fake_runs, capsys):
    assert main(["export", "one", "--to", "pt2", "--root", str(runs), "--out", str(artifact)]) == 1
    assert "already exists" in capsys.readouterr().err
    run = fake_runs.run("bare", checkpoints=(2,))
    assert main(["export", str(run), "--to", "pt2"]) == 1
    assert "does not record its recipe" in capsys.readouterr().err
    assert main(["export", "one", "--to", "pickle", "--root", str(runs)]) == 2


def test_weights_that_do_not_fit_the_model_are_named(runs):
    with pytest.raises(InvalidModel, match="do not fit"):
        load_trained_model("one", runs, recipe=str(other(runs)))


def other(runs):
    path = runs / "other.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from trueloop.recipes import tabular\n"
        "def build():\n"
        "    recipe = tabular.build()\n"
        "    return replace(recipe, assemble=lambda o: tabular.assemble(replace(o, width=o.width + 1)))\n"
    )
    return path


def test_predictions_on_files_equal_the_model(runs, artifact, tmp_path, capsys):
    source = load_trained_model("one", runs)
    rows = np.stack([source.parts.test[index][0].numpy() for index in range(3)])
    with torch.no_grad():
        probabilities = source.parts.model.eval()(torch.from_numpy(rows)).softmax(1)
    columns = list(source.parts.reading.columns)
    np.save(tmp_path / "rows.npy", rows)
    shuffled = np.random.default_rng(0).permutation(len(columns))
    lines = [",".join(columns[index] for index in shuffled)]
    lines += [",".join(repr(float(row[index])) for index in shuffled) for row in rows]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "rows.json").write_text(json.dumps({"inputs": rows.tolist()}))
    capsys.readouterr()
    for ending in ("npy", "csv", "json"):
        assert main(["predict", str(artifact), str(tmp_path / f"rows.{ending}"), "--json"]) == 0
        answers = json.loads(capsys.readouterr().out)["answers"]
        assert [each["index"] for each in answers] == probabilities.argmax(1).tolist()
        found = torch.tensor([each["probability"] for each in answers])
        torch.testing.assert_close(found, probabilities.amax(1), rtol=1e-5, atol=1e-6)
    assert main(["predict", str(artifact), str(tmp_path / "rows.npy")]) == 0
    assert "rows.npy[2]  label " in capsys.readouterr().out


def test_invalid_input_files_are_refused(artifact, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("mean radius,mean radios\n1,2\n")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for arguments, message in (
        ([str(tmp_path / "rows.csv")], "Did you mean 'mean radius'"),
        ([str(tmp_path / "objects.npy")], "not a readable array"),
        ([str(tmp_path / "absent.csv")], "cannot be read"),
        (["picture.png"], "is not a kind of file that this model takes"),
        ([], "The input files are missing"),
        (["rows.npy", "--digest", "0" * 64], "not the requested artifact"),
    ):
        assert main(["predict", str(artifact), *arguments]) == 1
        assert message in capsys.readouterr().err


def parts_of(**changes):
    options = tabular.TabularOptions(width=2)
    parts = registry.load("tabular").assemble(options)
    return Parts(**{**{name: getattr(parts, name) for name in Parts.__dataclass_fields__}, **changes})


def test_batches_of_several_sizes_come_from_held_out_data_first():
    parts = parts_of()
    sizes = [len(batch[0]) for batch in sample_batches(parts)]
    assert sizes[:3] == [8, 5, 3]
    assert set(sizes[3:]) == {1}
    torch.testing.assert_close(sample_batches(parts)[0][0][0], parts.test[0][0])
    ready = [(torch.zeros(2, 30), torch.zeros(2, dtype=torch.int64))]
    assert sample_batches(parts_of(test=ready)) == ready
    with pytest.raises(InvalidData, match="no sample"):
        sample_batches(parts_of(test=[]))


def test_the_objective_must_call_the_model_and_labels_define_the_answer():
    parts = parts_of(objective=lambda model, batch: torch.zeros(()))
    with pytest.raises(InvalidModel, match="never calls the model"):
        capture_samples(parts)
    names, inputs, outputs = capture_samples(parts_of())
    assert (names, inputs[0][0].shape) == (("input",), (8, 30))
    assert infer_answer(parts_of(), outputs).kind == "class"
    assert infer_answer(parts_of(class_names=()), outputs).kind == "array"
    assert infer_answer(parts_of(class_names=()), [torch.zeros(8, 1)]).kind == "value"
    loss = parts_of(objective=torch.nn.MultiMarginLoss())
    assert not infer_answer(loss, outputs).softmax, "margins are not probabilities"


def test_unknown_runs_and_options_are_refused(runs):
    with pytest.raises(RunFolderError, match="no run"):
        load_trained_model("none", runs)
    with pytest.raises(InvalidConfig, match="option 'data'"):
        load_trained_model("one", runs, recipe=str(plain(runs)))


def plain(runs):
    path = runs / "plain.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from trueloop.recipes import tabular\n"
        "def build():\n"
        "    return replace(tabular.build(), options=None)\n"
    )
    return path
