"""A short form of the campaigns of `make soak`: the same engine, the same judge, few schedules."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import kills
import managed

SLACK = 10.0
"""Tests run on machines that are busy: here only that somebody is told, and what, is judged."""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("loss", ["stop", "continue"])
@pytest.mark.parametrize("mark", ["start", "pushed", "leaving"])
def test_whoever_survives_a_killed_worker_is_told_or_goes_on_exactly(transport, loss, mark):
    schedule = replace(
        kills.Schedule.draw(len(mark)),
        role="worker",
        victim=1,
        transport=transport,
        loss=loss,
        mark=mark,
        times=1,
    )
    seen = kills.run(schedule)
    assert kills.judge(seen, SLACK) == [], f"{schedule}\n{seen.output}"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_whoever_survives_a_killed_server_is_told(transport):
    schedule = replace(
        kills.Schedule.draw(1), role="server", victim=0, transport=transport, mark="clocked", times=2
    )
    seen = kills.run(schedule)
    assert kills.judge(seen, SLACK) == [], f"{schedule}\n{seen.output}"
    assert any("error" in outcome for outcome in seen.outcomes.values()), "nobody noticed"


@pytest.mark.parametrize("mark", [managed.CREATION, "start", "clocked", "leaving"])
def test_no_worker_notices_that_its_manager_was_killed_and_the_next_one_hears_how_the_job_ended(mark):
    schedule = replace(
        managed.Schedule.draw(len(mark)), role="manager", victim=0, servers=2, mark=mark, times=1, away=0.5
    )
    seen = managed.run(schedule)
    assert managed.judge(seen, SLACK) == [], f"{schedule}\n{seen.output}"


def test_whoever_survives_a_killed_server_of_a_manager_is_told():
    schedule = replace(managed.Schedule.draw(1), role="server", victim=0, mark="clocked", times=2)
    seen = managed.run(schedule)
    assert managed.judge(seen, SLACK) == [], f"{schedule}\n{seen.output}"
    assert any("error" in outcome for outcome in seen.outcomes.values()), "nobody noticed"


def test_the_judge_can_fail():
    seen = kills.Run(replace(kills.Schedule.draw(3), role="worker", victim=0, workers=2, loss="stop"))
    seen.outcomes = {1: {"least": [3, 5], "most": [5, 6], "rows": [6, 6], "when": 0.0}}
    seen.left_files = ["penstock-x"]
    assert len(kills.judge(seen)) == 5


def test_the_judge_of_managers_can_fail():
    seen = managed.Run(replace(managed.Schedule.draw(0), role="manager", workers=1, servers=1))
    seen.killed_at, seen.state = 1.0, "failed"
    seen.outcomes = {0: {"error": "ServerLost", "text": "server 0 was lost", "when": 2.0, "server": 0}}
    assert len(managed.judge(seen)) == 3


def test_who_heard_late_is_found_unless_it_asked_late():
    seen = kills.Run(replace(kills.Schedule.draw(3), role="worker", victim=0, workers=2, loss="stop"))
    seen.killed_at, seen.code = 1.0, 1
    for asked, is_late in [(0.5, True), (5.0, False)]:
        error = {"error": "WorkerLost", "text": "worker 0 was lost", "rank": 0}
        seen.outcomes = {1: {**error, "asked": asked, "when": 7.0}}
        wrong = kills.judge(seen)
        assert any("heard 6.0 s after" in one for one in wrong) == is_late, wrong
