"""A table of anyone's: read right, or refused with the cell at fault and the remedy."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkins.campaign.task import DataFile
from checkins.errors import InvalidValue
from checkins.tasks.data import in_holdout, table
from checkins.tasks.data.table import describe, load, scale

SOURCE = DataFile(
    "records.csv",
    client_column="person",
    label_column="outcome",
    features=("age", "weight_kg"),
    ranges=((0.0, 100.0), (30.0, 200.0)),
)
HEADER = ["person", "age", "weight_kg", "outcome"]
ROWS = [["bob", 50, 115, 1], ["ann", 25, 30, 0], ["bob", 250, -7, 0], ["eve", 100, 200, 1]]
FORMATS = ("csv", "parquet")

Row = list[object]


def write(folder: Path, rows: list[Row], kind: str = "csv", header: list[str] = HEADER) -> DataFile:
    path = folder / f"records.{kind}"
    if kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as text:
            csv.writer(text).writerows([header, *rows])
    else:
        arrow = pytest.importorskip("pyarrow", reason="PARQUET IS NOT TESTED: needs the extra data")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = [[row[place] for row in rows] for place in range(len(header))]
        parquet.write_table(arrow.table([arrow.array(c) for c in columns], names=header), path)
    return replace(SOURCE, file=path.name)


def refused(folder: Path, source: DataFile) -> str:
    with pytest.raises(InvalidValue) as caught:
        load(source, folder=folder)
    return str(caught.value)


def changed(row: int, column: str, value: object) -> list[Row]:
    rows = [list(row) for row in ROWS]
    rows[row][HEADER.index(column)] = value
    return rows


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_are_grouped_by_client_clipped_and_scaled(tmp_path: Path, kind: str) -> None:
    data = load(write(tmp_path, ROWS, kind), folder=tmp_path)
    assert data.name == "records"
    assert (data.clients, data.classes, data.max_rows_per_client) == (3, 2, 2)
    assert data.offsets.tolist() == [0, 1, 3, 4]  # ann, bob, eve
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.features.tolist() == [[-0.5, -1.0], [0.0, 0.0], [1.0, -1.0], [1.0, 1.0]]
    assert len(data.holdout_labels) == 0


numbers = st.floats(-1e6, 1e6, width=32)
tables = st.lists(
    st.tuples(st.integers(0, 5).map(str), numbers, numbers, st.integers(0, 2)),
    min_size=1,
    max_size=30,
).map(lambda rows: [["x", 1.0, 1.0, 0], ["y", 1.0, 1.0, 1], ["z", 1.0, 1.0, 2], *map(list, rows)])


@pytest.mark.parametrize("kind", FORMATS)
@given(rows=tables)
def test_every_row_comes_back_once_with_its_client(
    tmp_path_factory: pytest.TempPathFactory, kind: str, rows: list[Row]
) -> None:
    folder = tmp_path_factory.mktemp("table")
    data = load(write(folder, rows, kind), folder=folder)
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(str(row[0]), []).append(row)
    assert data.clients == len(grouped)
    for client, person in enumerate(sorted(grouped)):
        own = data.rows_of(client)
        raw = np.array([[row[1], row[2]] for row in grouped[person]], dtype=np.float64)
        assert np.array_equal(data.features[own], scale(raw, SOURCE.ranges))
        assert data.labels[own].tolist() == [row[3] for row in grouped[person]]


@given(rows=tables, share=st.floats(0.0, 0.6))
def test_the_holdout_takes_whole_clients_by_their_ids(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], share: float
) -> None:
    folder = tmp_path_factory.mktemp("table")
    source = write(folder, rows)
    people = sorted({str(row[0]) for row in rows})
    held = set(np.array(people)[in_holdout(people, share=share, hash_prefix=table.HASH_PREFIX)])
    left = {row[3] for row in rows if row[0] not in held}
    if len(left) < 2:
        assert refused(folder, replace(source, holdout=share)).startswith("holdout")
        return
    data = load(replace(source, holdout=share), folder=folder)
    assert data.clients == len(people) - len(held)
    assert len(data.holdout_labels) == sum(row[0] in held for row in rows)
    assert len(data.labels) + len(data.holdout_labels) == len(rows)


@given(
    st.floats(-1e300, 1e300),
    st.floats(-1e300, 1e300).filter(bool),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=5),
)
def test_any_value_lands_in_the_scale_and_order_is_kept(
    low: float, width: float, values: list[float]
) -> None:
    high = low + abs(width)
    if not low < high < float("inf"):
        return
    ordered = scale(np.array(sorted(values))[:, None], [(low, high)]).ravel()
    assert np.all(np.abs(ordered) <= 1.0)
    assert np.all(np.diff(ordered) >= 0.0)
    assert scale(np.array([[low], [high]]), [(low, high)]).ravel().tolist() == [-1.0, 1.0]


def test_the_widest_range_there_is_does_not_overflow() -> None:
    most = sys.float_info.max
    assert scale(np.array([[-most], [0.0], [most]]), [(-most, most)]).ravel().tolist() == [
        -1,
        0,
        1,
    ]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("age", float("nan"), "column 'age', row 2 = nan: must be finite"),
        ("age", float("-inf"), "column 'age', row 2 = -inf: must be finite"),
        ("age", None, "column 'age', row 2 = .*: is empty: fill it in with a public constant"),
        ("person", None, "column 'person', row 2 = '': is empty"),
        ("outcome", None, "column 'outcome', row 2 = .*: is empty"),
        ("outcome", 0.5, r"column 'outcome', row 2 = 0.5: is not a label"),
        ("outcome", -1, r"column 'outcome', row 2 = -1.0: is not a label"),
        ("outcome", float("nan"), "column 'outcome', row 2 = nan: must be finite"),
        ("outcome", 1e15, r"is not a label"),
    ],
)
def test_a_cell_at_fault_is_named(
    tmp_path: Path, kind: str, column: str, value: object, message: str
) -> None:
    rows = changed(1, column, value)
    if column == "outcome" and kind == "parquet":
        for row in rows:  # a column of Arrow has one type
            row[3] = None if row[3] is None else float(row[3])  # type: ignore[arg-type]
    if column == "age" and kind == "parquet":
        for row in rows:
            row[1] = None if row[1] is None else float(row[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=message):
        load(write(tmp_path, rows, kind), folder=tmp_path)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_feature_in_words_is_named(tmp_path: Path, kind: str) -> None:
    rows = [
        [row[0], "old" if number == 2 else str(row[1]), *row[2:]] for number, row in enumerate(ROWS)
    ]
    message = refused(tmp_path, write(tmp_path, rows, kind))
    assert message.startswith("column 'age', row 3 = 'old': is not a number")


@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_written_as_text_are_numbers(tmp_path: Path, kind: str) -> None:
    rows = [[row[0], str(row[1]), *row[2:]] for row in ROWS]
    data = load(write(tmp_path, rows, kind), folder=tmp_path)
    assert data.features[0, 0] == -0.5


@pytest.mark.parametrize("kind", FORMATS)
def test_a_missing_column_is_guessed(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path, ROWS, kind)
    message = refused(tmp_path, replace(source, client_column="Persons"))
    assert "did you mean 'person'?" in message
    assert "(person, age, weight_kg, outcome)" in message
    message = refused(tmp_path, replace(source, features=("age", "weight")))
    assert message.startswith("features = 'weight'")
    assert "did you mean 'weight_kg'?" in message
    assert "did you mean" not in refused(tmp_path, replace(source, label_column="zzz"))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_duplicated_column_is_refused_where_it_is_used(tmp_path: Path, kind: str) -> None:
    header = [*HEADER, "age"]
    rows = [[*row, 1] for row in ROWS]
    assert "occurs 2 times" in refused(tmp_path, write(tmp_path, rows, kind, header))
    unused = write(tmp_path, [[*row, 1] for row in rows], kind, [*HEADER, "x", "x"])
    assert load(unused, folder=tmp_path).clients == 3


@pytest.mark.parametrize("kind", FORMATS)
def test_one_class_and_one_client_teach_nothing(tmp_path: Path, kind: str) -> None:
    alike = [[*row[:3], 1] for row in ROWS]
    assert "label_column = 'outcome': is 1 in every row" in refused(
        tmp_path, write(tmp_path, alike, kind)
    )
    alone = [["ann", *row[1:]] for row in ROWS]
    assert "client_column = 'person': is 'ann' in every row" in refused(
        tmp_path, write(tmp_path, alone, kind)
    )


def test_labels_must_be_those_that_were_said(tmp_path: Path) -> None:
    source = write(tmp_path, changed(3, "outcome", 2))
    assert load(source, folder=tmp_path).classes == 3
    assert load(replace(source, classes=5), folder=tmp_path).classes == 5
    message = refused(tmp_path, replace(source, classes=2))
    assert message == "column 'outcome', row 4 = 2: is an unknown label: must be 0 to 1"
    gap = write(tmp_path, changed(3, "outcome", 7))
    said = "holds the labels 0, 1, 7: recode them as 0 to 2, or set the number of classes"
    assert said in refused(tmp_path, gap)
    assert load(replace(gap, classes=8), folder=tmp_path).classes == 8
    from_one = write(tmp_path, [[*row[:3], int(str(row[3])) + 1] for row in ROWS])
    assert refused(tmp_path, from_one).endswith("holds the labels 1, 2: recode them as 0 to 1")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_of_words_can_be_left_out_unless_it_is_the_label(
    tmp_path: Path, kind: str
) -> None:
    for column, more in (
        ("age", ", or leave the column out: list features in [task.data]"),
        ("outcome", ""),
    ):
        place = HEADER.index(column)
        rows = [[*row[:place], "red", *row[place + 1 :]] for row in ROWS]
        message = refused(tmp_path, write(tmp_path, rows, kind))
        assert message.endswith(f"is not a number: encode categories as numbers{more}")


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_table_is_refused(tmp_path: Path, kind: str) -> None:
    assert "has a header but no rows" in refused(tmp_path, write(tmp_path, [], kind))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: must begin with a header"),
        (b"person,age,weight_kg,outcome\nann,1,2\n", "row 1 = 3: must have 4 cells"),
        (b"person,age,weight_kg,outcome\nann,1,2,0,5\n", "row 1 = 5: must have 4 cells"),
        (
            b"person;age;weight_kg;outcome\nann;1;2;0\n",
            "; cells are separated by ; : save it with commas",
        ),
        (
            b"person;age, years;weight_kg;outcome\nann;1;2;0\n",
            "; cells are separated by ; : save it with commas",
        ),
        (
            b'"age, years";person;weight_kg;outcome\n1;ann;2;0\n',
            "; cells are separated by ; : save it with commas",
        ),
        (
            b"person\tage\tweight_kg\toutcome\nann\t1\t2\t0\n",
            "; cells are separated by tabs: save it with commas",
        ),
        (b"person,age,weight_kg,outcome\n\xff\xfe,1,2,0\n", "is not UTF-8 text"),
        (b'person,age,weight_kg,outcome\n"ann,1,2,0\n', "is not well-formed CSV"),
    ],
)
def test_a_damaged_csv_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "records.csv").write_bytes(content)
    assert message in refused(tmp_path, SOURCE)


def test_marks_blanks_and_blank_lines_of_a_csv_change_nothing(tmp_path: Path) -> None:
    text = "person , age,weight_kg,outcome\r\n ann,1, 50 ,0\r\n\r\nann ,2,60,1\r\nbob,3,70,1.0\r\n"
    (tmp_path / "records.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    data = load(SOURCE, folder=tmp_path)
    assert (data.clients, data.labels.tolist()) == (2, [0, 1, 1])


def test_many_rows_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_BLOCK_ROWS", 3)
    rows: list[Row] = [[number, number, 50, number % 2] for number in range(10)]
    data = load(write(tmp_path, rows), folder=tmp_path)
    assert data.features[:, 0].tolist() == pytest.approx([n / 50 - 1 for n in range(10)])
    rows[7][1] = "x"
    assert "column 'age', row 8" in refused(tmp_path, write(tmp_path, rows))


def test_a_missing_file_is_guessed(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    message = refused(tmp_path, replace(SOURCE, file="record.csv"))
    assert "does not exist: did you mean 'records.csv'?" in message
    assert "does not exist" in refused(tmp_path / "nowhere", SOURCE)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, replace(SOURCE, file="a.xlsx")).endswith(".csv or .parquet")
    message = refused(tmp_path, replace(SOURCE, file="a.tsv"))
    assert message.endswith("must end in .csv or .parquet: save it as CSV with commas")
    (tmp_path / "folder.csv").mkdir()
    assert "is not a file" in refused(tmp_path, replace(SOURCE, file="folder.csv"))
    pytest.importorskip("pyarrow")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    assert "is not a valid Parquet file" in refused(tmp_path, replace(SOURCE, file="bad.parquet"))


def test_parquet_ids_must_be_texts_or_integers(tmp_path: Path) -> None:
    rows = [[float(number), *row[1:]] for number, row in enumerate(ROWS)]
    assert "ids must be texts or integers" in refused(tmp_path, write(tmp_path, rows, "parquet"))


def test_both_kinds_of_file_give_the_same_data(tmp_path: Path) -> None:
    rows: list[Row] = [[n % 7, n / 3, 50 + n, n % 3] for n in range(40)]
    one, other = (
        load(replace(write(tmp_path, rows, kind), holdout=0.3), folder=tmp_path) for kind in FORMATS
    )
    assert one.features.tobytes() == other.features.tobytes()
    assert one.labels.tobytes() == other.labels.tobytes()
    assert one.offsets.tobytes() == other.offsets.tobytes()
    assert one.holdout_labels.tobytes() == other.holdout_labels.tobytes()


def test_parquet_without_the_extra_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    message = refused(tmp_path, replace(SOURCE, file="a.parquet"))
    assert "pip install 'checkins[data]'" in message


def test_a_description_asks_for_the_ranges_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    given_columns = {"client_column": "person", "label_column": "outcome"}
    path = tmp_path / "records.csv"
    with pytest.raises(InvalidValue, match="highest value of age, weight_kg: use public constants"):
        describe(path, **given_columns)
    with pytest.raises(InvalidValue, match="highest value of weight_kg"):
        describe(path, features=["age", "weight_kg"], ranges={"age": (0, 100)}, **given_columns)
    with pytest.raises(InvalidValue, match="not among the features"):
        describe(path, features=["age"], ranges={"age": (0, 9), "x": (0, 1)}, **given_columns)
    source = describe(path, ranges={"age": (0, 100), "weight_kg": (30, 200)}, **given_columns)
    assert source == replace(SOURCE, file=str(path))
    assert load(source).clients == 3


def test_a_holdout_that_leaves_nothing_to_learn_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, ROWS)
    message = refused(tmp_path, replace(source, holdout=0.9999999))
    assert "puts all 3 clients into the public holdout" in message
    for share in (1.0, float("nan")):
        with pytest.raises(InvalidValue, match="holdout"):
            replace(source, holdout=share)
        with pytest.raises(InvalidValue, match="must be a share"):
            in_holdout(["ann"], share=share, hash_prefix=table.HASH_PREFIX)
