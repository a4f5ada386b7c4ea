"""The player that counts gaps."""

from __future__ import annotations

from antiphon_vocoder.metrics import PlayerModel


def test_audio_in_time_has_no_gap() -> None:
    player = PlayerModel()
    for index in range(10):
        player.arrive(index * 0.5, 0.5)
    assert (player.underruns, player.continuous) == (0, True)


def test_late_audio_is_an_underrun_and_a_long_gap_is_heard() -> None:
    player = PlayerModel()
    player.arrive(0.0, 1.0)
    player.arrive(1.15, 1.0)
    assert (player.underruns, player.continuous) == (1, True)
    player.arrive(3.0, 1.0)
    assert (player.underruns, player.continuous) == (2, False)


def test_a_pause_of_the_speaker_is_no_underrun() -> None:
    player = PlayerModel()
    player.arrive(0.0, 1.0)
    player.arrive(60.0, 1.0, after_pause=True)
    assert player.underruns == 0


def test_the_least_slack_is_the_closest_that_it_came_to_running_dry() -> None:
    player = PlayerModel()
    player.arrive(0.0, 0.5)
    player.arrive(0.55, 0.5)
    assert abs(player.least_slack - 0.05) < 1e-9
    player.arrive(1.3, 0.5)
    assert abs(player.least_slack + 0.2) < 1e-9
