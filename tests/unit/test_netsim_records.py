"""A record with a fault in it is refused with its own name and line, whoever reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsim.acceptance import read_record
from netsim.recorded import read_times
from netsim.scenario_file import default_study, parse_study
from specwire.errors import BadRequest

LINK = "[link]\nrtt_ms = 10\n"
BY_HAND = "[models]\ndraft_ms = 10\nverify_ms = 30\n"
RECORDED_MODELS = f'{LINK}[models]\nrecord = "run.jsonl"\n[acceptance]\nalpha = 0.5\n'
RECORDED_DRAFT = f'{LINK}{BY_HAND}[acceptance]\nrecord = "run.jsonl"\n'


def record(folder: Path, line: str) -> Path:
    path = folder / "run.jsonl"
    path.write_text(f'{{"position": 1}}\n\n{line}\n')
    return path


@pytest.mark.parametrize("read", [read_record, read_times])
@pytest.mark.parametrize("line", ["[1]", "x = 1", '"draft_knew"', "7"])
def test_what_is_no_object_is_named_by_file_and_line(read: object, line: str, tmp_path: Path):
    path = record(tmp_path, line)
    with pytest.raises(BadRequest) as found:
        read(path)  # type: ignore[operator]
    assert f"{path}, line 3 is no JSON" in str(found.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"draft_s": "x"}', "draft_s must be a time from 0 to 1e+06 s, not 'x'"),
        ('{"draft_s": -0.1}', "draft_s must be a time from 0 to 1e+06 s, not -0.1"),
        ('{"draft_s": NaN}', "draft_s must be a time from 0 to 1e+06 s, not nan"),
        ('{"verify_s": true}', "verify_s must be a time from 0 to 1e+06 s, not True"),
        (f'{{"verify_s": 1{"0" * 400}}}', "verify_s must be a time from 0 to 1e+06 s"),
        ('{"verify_s": 1, "evaluated": 1.5}', "evaluated must be a whole number"),
    ],
)
def test_a_time_that_is_none_is_named_by_file_and_line(line: str, says: str, tmp_path: Path):
    path = record(tmp_path, line)
    with pytest.raises(BadRequest) as found:
        parse_study(RECORDED_MODELS, "mine.toml", tmp_path)
    assert f"{path}, line 3: {says}" in str(found.value)


def test_an_agreement_that_is_none_is_named_by_file_and_line(tmp_path: Path):
    path = record(tmp_path, '{"draft_knew": "yes"}')
    with pytest.raises(BadRequest) as found:
        parse_study(RECORDED_DRAFT, "mine.toml", tmp_path)
    assert f"{path}, line 3: draft_knew must be true or false, not 'yes'" in str(found.value)


def test_a_record_that_is_not_there_is_named(tmp_path: Path):
    for text in (RECORDED_MODELS, RECORDED_DRAFT):
        with pytest.raises(BadRequest, match=r"can't read the record .*run\.jsonl"):
            parse_study(text, "mine.toml", tmp_path)


def test_what_a_token_adds_is_the_same_wherever_it_is_not_known(tmp_path: Path):
    by_hand = parse_study(f"{LINK}{BY_HAND}[acceptance]\nalpha = 0.5\n", "mine.toml", tmp_path)
    record(tmp_path, '{"draft_s": 0.01}')
    drafts = RECORDED_MODELS.replace("[acceptance]", "verify_ms = 30\n[acceptance]")
    assert (
        by_hand.base.models.extra_s
        == parse_study(drafts, "mine.toml", tmp_path).base.models.extra_s
        == default_study().base.models.extra_s
        == 0.001
    )
