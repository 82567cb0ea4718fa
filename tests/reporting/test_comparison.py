from mfpo.reporting.comparison import table_text

ROW = {
    "algorithm": "mfpo",
    "seeds": 2,
    "mean": 312.44,
    "std": 80.1,
    "iqm": 312.44,
    "interval": [250.0, 370.0],
    "rounds": 2.0,
    "trajectories_per_agent": 40.0,
    "env_steps": 1234.0,
    "bytes_up": 9_000.0,
    "bytes_down": 9_500.0,
}


def cells(**changes):
    return [cell.strip() for cell in table_text([ROW | changes]).splitlines()[2].strip("|").split("|")]


def test_large_scores_have_one_decimal():
    assert cells()[2:5] == ["312.4 ± 80.1", "312.4", "250.0 .. 370.0"]


def test_rates_of_success_can_be_told_apart():
    small = cells(mean=0.72, std=0.0112, iqm=0.7249, interval=[0.71, 0.74])
    assert small[2:5] == ["0.720 ± 0.011", "0.725", "0.710 .. 0.740"]


def test_what_was_sent_has_a_unit_that_fits():
    assert cells()[-1] == "18.5 kB"
    assert cells(bytes_up=3e6)[-1] == "3.0 MB"
    assert cells(bytes_up=500, bytes_down=0)[-1] == "500 B"
