"""`everyo train` and `everyo predict`: from a table to predictions, every bad file in a line."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyo as eo
from everyo.cli.columns import Plan, Table, detect_task, learn_plan
from everyo.cli.main import main
from everyo.exceptions import EveryOError, EveryOSerializationError

ROWS = 80
QUICK = ["--quiet", "--epochs", "40", "--hidden-size", "16"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, header, rows, delimiter=","):
    lines = [header, *rows] if header else rows
    path.write_text("".join(delimiter.join(map(str, row)) + "\n" for row in lines))
    return str(path)


def flowers(path, rows=ROWS, **options):
    """Two classes that a colour and a number tell apart; names, constants and gaps beside them."""
    rng = np.random.default_rng(0)
    lines = []
    for i in range(rows):
        colour, size = rng.choice(["red", "blue"]), rng.normal()
        kind = "rose" if size + 2 * (colour == "red") > 1 else "violet"
        lines.append([f"no{i}", colour, "" if i == 3 else f"{size:.3f}", 7, kind])
    return write(path, ["id", "colour", "size", "flat", "kind"], lines, **options)


def prices(path, rows=ROWS, header=True):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 2))
    y = 1000 + 300 * x[:, 0] - 50 * x[:, 1]
    lines = [[f"{a:.4f}", f"{b:.4f}", f"{c:.3f}"] for (a, b), c in zip(x, y, strict=True)]
    return write(path, ["a", "b", "price"] if header else None, lines)


def trained(capsys, *command):
    assert main(["train", *command, "--json", *QUICK]) == 0
    return json.loads(capsys.readouterr().out)


def lines_of(path):
    with open(path) as file:
        return [line.split(",") for line in file.read().splitlines()]


def predicted(capsys, *command):
    assert main(["predict", *command]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    return head.split(","), [line.split(",") for line in lines]


def failure(capsys, *command):
    assert main(list(command)) == 2
    out = capsys.readouterr()
    assert out.out == ""
    (line,) = out.err.splitlines()
    return line


def test_classes_are_learnt_and_predicted(tmp_path, capsys):
    table = flowers(tmp_path / "flowers.csv")
    report = trained(capsys, table, "--target", "kind")
    assert report["task"] == "classification"
    assert report["classes"] == ["rose", "violet"]
    assert report["features"] == ["colour", "size"]
    assert report["left_out"] == ["id", "flat"]
    assert report["training_rows"] + report["validation_rows"] == ROWS
    assert report["accuracy"] > 0.9 > report["baseline_accuracy"]

    head, lines = predicted(capsys, "flowers.evo", table)
    assert head == ["kind", "probability"]
    true = [line[-1] for line in lines_of(table)[1:]]
    assert np.mean([line[0] == t for line, t in zip(lines, true, strict=True)]) > 0.9
    assert all(0.5 <= float(line[1]) <= 1 for line in lines)


def test_a_quantity_is_learnt_and_predicted_in_its_own_units(tmp_path, capsys):
    table = prices(tmp_path / "prices.csv")
    report = trained(capsys, table, "--learning-rate", "0.01")
    assert (report["task"], report["target"]) == ("regression", "price")
    assert report["r2"] > 0.9
    assert report["mean_absolute_error"] < report["baseline_mean_absolute_error"] / 2

    head, lines = predicted(capsys, "prices.evo", table)
    true = np.genfromtxt(table, delimiter=",", skip_header=1)[:, -1]
    error = np.abs(np.array(lines, float)[:, 0] - true).mean()
    assert head == ["price"]
    assert error < 2 * report["mean_absolute_error"]


def test_all_promised_files_are_written(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    report = trained(capsys, flowers(tmp_path / "t.csv"), "--output", "out/model")
    assert report["files"] == {
        "model": "out/model.evo",
        "history": "out/model.history.csv",
        "curves": "out/model.curves.png",
        "chart": "out/model.predictions.png",
    }
    for file in report["files"].values():
        assert (tmp_path / file).stat().st_size > 0
    history = (tmp_path / "out/model.history.csv").read_text().splitlines()
    assert len(history) == report["epochs"] + 1
    described = eo.inspect_archive("out/model.evo")["metadata"]
    assert described["report"]["accuracy"] == report["accuracy"]


@pytest.mark.parametrize("make", [flowers, prices])
def test_the_report_for_people_names_what_matters(make, tmp_path, capsys):
    table = make(tmp_path / "t.csv")
    assert main(["train", table, *QUICK]) == 0
    text = capsys.readouterr().out
    for word in (table, "Features", "Validation", "t.evo", "everyo predict"):
        assert word in text
    assert main(["predict", "t.evo", table]) == 0
    assert "80 rows with a value" in capsys.readouterr().err


@pytest.mark.parametrize("kinds", [("$\\frac{$", "$5 and $6"), ("猫", "狗"), ("x" * 300, "y")])
def test_charts_take_names_as_they_come(kinds, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    rows = [[i, kinds[i % 2], f"{i % 7}.5"] for i in range(40)]
    table = write(tmp_path / "t.csv", ["a", "$kind_{", "$y_{ $"], rows)
    for target in ("$kind_{", "$y_{ $"):
        assert (tmp_path / trained(capsys, table, "--target", target)["files"]["chart"]).exists()


def test_progress_goes_where_errors_go(tmp_path, capsys):
    assert main(["train", flowers(tmp_path / "t.csv"), "--epochs", "1", "--json"]) == 0
    out = capsys.readouterr()
    assert "Epoch 1/1" in out.err
    assert json.loads(out.out)["epochs"] == 1


def test_the_score_of_the_report_is_that_of_the_saved_model(tmp_path, capsys):
    table = flowers(tmp_path / "t.csv")
    report = trained(capsys, table, "--validation-split", "0")
    assert report["scored_on"] == "training"
    assert main(["predict", "t.evo", table]) == 0
    assert f"accuracy {report['accuracy']:.1%}" in capsys.readouterr().err


def test_equal_seeds_give_equal_models(tmp_path, capsys):
    table = flowers(tmp_path / "t.csv")
    models = []
    for name in ("a", "b", "c"):
        trained(capsys, table, "--output", name, "--seed", "1" if name == "c" else "0")
        models.append(eo.load(f"{name}.evo").state_dict())
    same = [np.array_equal(models[0][k], models[1][k]) for k in models[0]]
    assert all(same)
    assert not np.array_equal(models[0]["0.weight"], models[2]["0.weight"])


def test_columns_may_come_in_any_order_and_without_the_target(tmp_path, capsys):
    table = flowers(tmp_path / "t.csv")
    trained(capsys, table)
    turned = [[row[2], "extra", row[1]] for row in lines_of(table)]
    other = write(tmp_path / "turned.csv", None, turned)
    _, expected = predicted(capsys, "t.evo", table)
    _, found = predicted(capsys, "t.evo", other)
    assert found == expected


def test_new_categories_and_gaps_are_predicted_too(tmp_path, capsys):
    trained(capsys, flowers(tmp_path / "t.csv"))
    new = write(tmp_path / "n.csv", ["colour", "size"], [["green", "NA"], ["red", "1"]])
    _, lines = predicted(capsys, "t.evo", new)
    assert len(lines) == 2


def test_a_table_without_a_header_is_known_by_place(tmp_path, capsys):
    table = prices(tmp_path / "p.csv", header=False)
    report = trained(capsys, table, "--no-header", "--target", "-1")
    assert (report["features"], report["target"]) == (["0", "1"], "2")
    _, lines = predicted(capsys, "p.evo", table)
    assert len(lines) == ROWS


def test_another_delimiter_is_remembered(tmp_path, capsys):
    table = flowers(tmp_path / "t.tsv", delimiter="\t")
    trained(capsys, table, "--delimiter", "tab", "--skip", "id", "flat")
    _, lines = predicted(capsys, "t.evo", table)
    assert len(lines) == ROWS


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_delimiter_is_found(delimiter, tmp_path, capsys):
    table = flowers(tmp_path / "t.csv", delimiter=delimiter)
    assert trained(capsys, table)["features"] == ["colour", "size"]
    _, lines = predicted(capsys, "t.evo", table)
    _, others = predicted(capsys, "t.evo", flowers(tmp_path / "comma.csv"))
    assert lines == others


def test_a_comma_that_divides_cells_is_the_delimiter(tmp_path, capsys):
    header = ["a;b;c", "kind"]
    table = write(tmp_path / "t.csv", header, [[i, "xy"[i % 2]] for i in range(20)])
    assert trained(capsys, table)["features"] == ["a;b;c"]


def test_between_semicolons_a_comma_is_a_decimal_point(tmp_path, capsys):
    report = trained(capsys, prices(tmp_path / "p.csv"))
    text = (tmp_path / "p.csv").read_text()
    (tmp_path / "q.csv").write_text(text.replace(",", ";").replace(".", ","))
    other = trained(capsys, "q.csv")
    assert other["mean_absolute_error"] == report["mean_absolute_error"]
    assert predicted(capsys, "q.evo", "q.csv") == predicted(capsys, "p.evo", "p.csv")


def test_names_that_look_like_data_are_noticed(tmp_path, capsys):
    assert main(["train", prices(tmp_path / "p.csv", header=False), *QUICK]) == 0
    assert "--no-header" in capsys.readouterr().err
    assert main(["train", prices(tmp_path / "q.csv"), *QUICK]) == 0
    assert capsys.readouterr().err == ""


def test_columns_without_a_name_are_known_by_place(tmp_path, capsys):
    table = write(tmp_path / "t.csv", ["", "kind"], [[i, "xy"[i % 2]] for i in range(20)])
    assert trained(capsys, table)["features"] == ["0"]


@pytest.mark.parametrize("cell", ["1e149", "-1e149"])
def test_numbers_far_outside_the_table_have_a_prediction(cell, tmp_path, capsys):
    trained(capsys, prices(tmp_path / "p.csv"))
    new = write(tmp_path / "n.csv", ["a", "b"], [[cell, 0]])
    _, ((value,),) = predicted(capsys, "p.evo", new)
    assert np.isfinite(float(value))


def test_the_unit_of_a_column_does_not_matter(tmp_path, capsys):
    reports = []
    for k, unit in enumerate((1.0, 2.0**-60, 2.0**300)):
        rows = [[repr(i * unit), (i % 10) ** 2] for i in range(ROWS)]
        table = write(tmp_path / f"t{k}.csv", ["a", "y"], rows)
        reports.append(trained(capsys, table, "--task", "regression"))
    assert len({report["r2"] for report in reports}) == 1


def test_probabilities_of_all_classes_add_up(tmp_path, capsys):
    table = flowers(tmp_path / "t.csv")
    trained(capsys, table)
    assert main(["predict", "t.evo", table, "--probabilities", "--json", "--output", "p.json"]) == 0
    for row in json.loads((tmp_path / "p.json").read_text()):
        assert row["p(rose)"] + row["p(violet)"] == pytest.approx(1, abs=2e-4)


def test_the_command_line_wins_over_the_configuration(tmp_path, capsys):
    settings = {"training": {"epochs": 2, "batch_size": 8}, "model": {"hidden_size": 4}}
    (tmp_path / "c.json").write_text(json.dumps(settings))
    command = ["train", flowers(tmp_path / "t.csv"), "--config", "c.json", "--json", "--quiet"]
    assert main([*command, "--hidden-size", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["epochs"] == 2
    assert eo.load("t.evo").state_dict()["0.weight"].shape == (3, 5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_both_optimizers_train(optimizer, tmp_path, capsys):
    report = trained(capsys, flowers(tmp_path / "t.csv"), "--optimizer", optimizer)
    assert report["accuracy"] > report["baseline_accuracy"]


BAD_TABLES = {
    "missing": (None, "No such file"),
    "empty": (b"", "there are no rows"),
    "header only": (b"a,b\n", "there are no rows"),
    "few rows": (b"a,b\n1,2\n3,4\n", "at least 10"),
    "ragged": (b"a,b\n1,2\n3\n", "line 3: 1 cells where the first line has 2"),
    "binary": (bytes(range(128, 256)), "not a text table"),
    "twice": (b"a,a,label\n" + b"1,2,x\n" * 20, "two columns are named 'a'"),
    "no target": (b"a,b\n" + b"1,\n" * 20, "0 rows have a value"),
    "one class": (b"a,label\n" + b"1,x\n2,x\n" * 20, "nothing to tell apart"),
    "no features": (b"a,label\n" + b"1,x\n1,y\n" * 20, "no column is left"),
    "infinite": (b"a,label\n" + b"1,x\ninf,y\n" * 20, "line 3, column 'a': 'inf'"),
    "too large": (b"a,label\n" + b"1,x\n2e200,y\n" * 20, "'2e200' is too large a number"),
    "nul": (b"a,label\n" + b"1,x\n2\0,y\n" * 20, "not a text table"),
    "utf-16": ("a,label\n1,x\n2,y\n".encode("utf-16"), "not a text table"),
    "names as classes": (
        "".join(f"{i},row {i}\n" for i in range(20)).encode(), "classes must come up more than once"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_bad_table_is_one_line_and_code_2(name, tmp_path, capsys):
    content, words = BAD_TABLES[name]
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content)
    assert words in failure(capsys, "train", "t.csv", "--quiet")
    assert not (tmp_path / "t.evo").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--target", "price"], "no column named 'price'; the columns are id, colour"),
        (["--target", "9"], "no column named '9'"),
        (["--skip", "smell"], "no column named 'smell'"),
        (["--epochs", "0"], "epochs"),
        (["--optimizer", "newton"], "optimizer must be one of sgd, adam"),
        (["--validation-split", "1"], "validation_split"),
        (["--device", "abacus"], "preferred"),
        (["--config", "none.json"], "does not exist"),
        (["--config", "t.csv"], "Unsupported configuration file"),
        (["--config", "broken.json"], "Invalid JSON"),
        (["--config", "list.json"], "must be a mapping"),
        (["--config", "sizes.json"], "output_size 3, but"),
        (["--task", "regression"], "'rose' is not a finite number"),
        (["--learning-rate", "1e30", "--epochs", "3"], "the training diverged"),
        (["--hidden-size", str(10**14)], "llocate"),
        (["--output", "."], "is a folder"),
    ],
)
def test_a_bad_setting_is_one_line_and_code_2(flags, words, tmp_path, capsys):
    table = flowers(tmp_path / "t.csv")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "sizes.json").write_text('{"model": {"output_size": 3}}')
    if words.startswith("'rose'"):
        words = "is not a finite number"
    assert words in failure(capsys, "train", table, "--quiet", *flags)


def plan_metadata():
    rows = "".join(f"{i},{'xy'[i % 2]}\n" for i in range(20))
    with open("plan.csv", "w") as file:
        file.write("a,label\n" + rows)
    table = Table.read("plan.csv")
    return learn_plan(table, range(20), "label", "auto", ",", True)[0].to_metadata()


def test_a_model_that_train_did_not_make_is_refused(tmp_path, capsys):
    table = flowers(tmp_path / "t.csv")
    eo.save(eo.Linear(2, 2), "other.evo")
    assert "was not written by `everyo train`" in failure(capsys, "predict", "other.evo", table)
    (tmp_path / "junk.evo").write_bytes(b"junk")
    assert "not a valid" in failure(capsys, "predict", "junk.evo", table)
    assert "not found" in failure(capsys, "predict", "none.evo", table)


def test_a_model_that_does_not_fit_its_description_is_refused(tmp_path, capsys):
    (tmp_path / "n.csv").write_text("a\n1\n2\n")
    eo.save(eo.Linear(5, 2), "wide.evo", metadata=plan_metadata())
    assert "does not take the 1 numbers" in failure(capsys, "predict", "wide.evo", "n.csv")
    eo.save(eo.Linear(1, 5), "many.evo", metadata=plan_metadata())
    assert "the model gives (2, 5)" in failure(capsys, "predict", "many.evo", "n.csv")


def test_predict_names_the_column_that_is_missing(tmp_path, capsys):
    trained(capsys, flowers(tmp_path / "t.csv"))
    new = write(tmp_path / "n.csv", ["size"], [["1"]])
    assert "no column named 'colour'" in failure(capsys, "predict", "t.evo", new)
    assert "No such file" in failure(capsys, "predict", "t.evo", "gone.csv")


def paths(value, path=()):
    """Every place in nested dicts and lists."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], (*path, key))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_metadata_is_the_librarys_own_error(data):
    metadata = json.loads(json.dumps(plan_metadata()))
    place = data.draw(st.sampled_from([p for p in paths(metadata) if p]))
    wrong = data.draw(st.sampled_from([None, {}, [], "", "x", -1, 0.0, 1e400, True, [[1]]]))
    inner = metadata
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = wrong
    try:
        plan = Plan.from_metadata(metadata, "here")
    except EveryOSerializationError:
        return
    try:
        plan.features(Table.read("plan.csv"))
    except EveryOError:
        return


HOSTILE_PLANS = {
    "half a character": lambda plan: plan["target"].update(classes=["\ud800", "x"]),
    "many categories": lambda plan: plan["columns"][0].update(
        values=[str(i) for i in range(10**5)]),
    "no spread": lambda plan: plan["columns"][0].update(std=0.0),
    "no number": lambda plan: plan["columns"][0].update(mean=float("nan")),
    "one class": lambda plan: plan["target"].update(classes=["x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_PLANS)
def test_a_hostile_plan_is_refused(name):
    metadata = plan_metadata()
    HOSTILE_PLANS[name](metadata["plan"])
    with pytest.raises(EveryOSerializationError, match="damaged"):
        Plan.from_metadata(json.loads(json.dumps(metadata)), "here")


def test_the_least_spread_gives_finite_features(tmp_path):
    metadata = plan_metadata()
    metadata["plan"]["columns"][0].update(std=5e-324)
    features = Plan.from_metadata(metadata, "here").features(Table.read("plan.csv"))
    assert np.isfinite(features).all()


def test_messages_hold_nothing_that_a_terminal_obeys(tmp_path, capsys):
    write(tmp_path / "t.csv", ["\x1b[2Ja", "b" * 5000], [[i, i % 2] for i in range(20)])
    line = failure(capsys, "train", "t.csv", "--target", "c")
    assert "\\x1b[2Ja" in line and line.isprintable() and len(line) < 1100


def test_a_plan_survives_json():
    metadata = plan_metadata()
    restored = Plan.from_metadata(json.loads(json.dumps(metadata)), "here")
    assert restored.to_metadata() == metadata


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["a", "b"] * 10, "classification"),
        (["0", "1"] * 10, "classification"),
        (["0.0", "1.0", "2"] * 10, "classification"),
        (["0.5", "1.5"] * 10, "regression"),
        ([str(i) for i in range(30)], "regression"),
        (["1", "inf"] * 10, "regression"),
    ],
)
def test_the_kind_of_a_target_is_seen(cells, task):
    assert detect_task(cells) == task


def test_unequal_spellings_of_a_number_are_one_class(tmp_path):
    rows = [[i, ["1", "1.0", "0"][i % 3]] for i in range(30)]
    table = write(tmp_path / "t.csv", ["a", "y"], rows)
    plan, _ = learn_plan(Table.read(table), range(30), "y", "auto", ",", True)
    assert plan.target.classes == ("0", "1")


def test_statistics_come_from_the_training_rows_alone(tmp_path):
    rows = [[i, i % 2] for i in range(20)] + [[1000, 0]]
    table = Table.read(write(tmp_path / "t.csv", ["a", "y"], rows))
    plan, _ = learn_plan(table, range(20), "y", "auto", ",", True)
    assert plan.columns[0].mean == pytest.approx(9.5)
