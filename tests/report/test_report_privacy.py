"""What people see of privacy: the section, the table of results, the head of the page, the screen."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from guarded_runs import Spends, real_run, with_columns, with_privacy

from fedarena.display import clip_norm_figure, epsilon_figure, final_table, noise_figure, write_report
from fedarena.display.report.cautions import cautions
from fedarena.display.report.methods import methods_of
from fedarena.display.report.privacy.spent import privacy_spent
from fedarena.display.report.privacy.table import privacy_columns, privacy_rows
from fedarena.display.report.sections.headline import headline
from fedarena.metrics.info import ACCURACY
from fedarena.runs.round_text import delta_text, epsilon_text, round_text

AUDIT = {"epsilon_lower": 0.7, "confidence": 0.95, "canaries": 500}
LAST = 0.2 * np.sqrt(60)  # the ε that `with_privacy` ends at


def text_of(path):
    """The page as a reader sees it, without scripts and markup."""
    page = path.read_text(encoding="utf-8").split("<main>")[1].split("</main>")[0]
    return re.sub(r"<[^>]+>", " ", page)


@pytest.fixture
def private(make_run):
    return with_privacy(make_run())


def test_what_a_run_spent_is_read_from_its_rounds_and_settings(private, make_run):
    spent = privacy_spent(private)
    assert spent.epsilon == pytest.approx(LAST)
    assert (spent.budget, spent.delta, spent.accountant, spent.mechanism) == (2.0, 1e-5, "PLD", "gaussian")
    assert not spent.is_simulated
    assert privacy_spent(make_run()) is None


def test_a_run_that_ended_knows_more_than_its_settings(private):
    told = {"delta": 1e-6, "budget": 3.0, "accountant": "rdp", "bound": "a bound", "neighbours": "one client is added"}
    spent = privacy_spent(replace(private, summary=private.summary | {"privacy": told}))
    assert (spent.budget, spent.delta, spent.accountant, spent.bound) == (3.0, 1e-6, "RDP", "a bound")
    assert spent.neighbours == "one client is added"


@pytest.mark.parametrize(
    ("epsilon", "text"), [(0.004, "0.00"), (1.984, "1.98"), (9.999, "10.0"), (99.96, "100"), (float("inf"), "∞")]
)
def test_epsilon_has_three_digits(epsilon, text):
    assert epsilon_text(epsilon) == text


def test_delta_is_written_as_people_write_it():
    assert [delta_text(delta) for delta in (1e-5, 2.5e-12, 0.001)] == ["1e-5", "2.5e-12", "0.001"]


def test_the_curve_of_epsilon_is_the_mean_of_seeds_with_the_budget_dashed(make_run):
    runs = [with_privacy(make_run(seed=seed), scale) for seed, scale in ((0, 1.0), (1, 2.0))]
    curve, budget = epsilon_figure(runs).data
    assert list(curve.x) == list(range(1, 61))
    assert curve.y[-1] == pytest.approx(1.5 * LAST)
    assert (list(budget.y), budget.line.dash, budget.name) == ([2.0, 2.0], "dash", "budget 2.00")


def test_budgets_that_differ_have_the_colours_of_their_methods(make_run):
    runs = [with_privacy(make_run(label), epsilon=budget) for label, budget in (("fedavg", 1.0), ("fedprox", 4.0))]
    data = epsilon_figure(runs).data
    colours = {trace.name: trace.line.color for trace in data if trace.line.dash == "solid"}
    budgets = {trace.name: trace for trace in data if trace.line.dash == "dash"}
    assert {name: trace.y[0] for name, trace in budgets.items()} == {"fedavg": 1.0, "fedprox": 4.0}
    assert {name: trace.line.color for name, trace in budgets.items()} == colours


def test_many_rounds_are_averaged_to_as_many_points_as_can_be_seen(make_run):
    run = with_privacy(make_run(rounds=2000, every=500, clients=12))
    (line,) = noise_figure([run]).data
    assert 500 < len(line.x) <= 600
    assert np.mean(line.y) == pytest.approx(np.nanmean(run.rounds["noise_to_signal"].to_numpy()), rel=1e-3)


def test_a_clipping_norm_that_never_changes_has_no_figure(private):
    assert clip_norm_figure([private]) is not None
    assert clip_norm_figure([with_columns(private, clip_norm=np.full(61, 0.5))]) is None


def test_the_table_shows_what_is_known_and_no_more(make_run):
    runs = [with_privacy(make_run("fedavg")), with_privacy(make_run("fedprox"), audit=AUDIT, noise_cohort=5000)]
    rows = privacy_rows(methods_of([*runs, make_run("fedyogi")]))
    texts = {column.title: [column.text(row) for row in rows] for column in privacy_columns(rows)}
    assert texts["ε"] == ["1.55", "1.55 sim."]
    assert texts["audited ε"] == ["–", "≥ 0.70 (95%)"]
    assert texts["noise of cohort"] == ["–", "5,000"]
    assert texts["clipping norm"] == ["0.517", "0.517"]
    plain = privacy_columns(privacy_rows(methods_of(runs[:1])))
    assert not {"audited ε", "noise of cohort"} & {column.title for column in plain}


def test_a_mechanism_that_proves_nothing_claims_something(make_run, tmp_path):
    run = make_run(config={"privacy": {"name": "nbafl", "epsilon": 8.0}})
    run = replace(run, summary=run.summary | {"privacy": {"claimed_epsilon": 8.0}})
    rows = privacy_rows(methods_of([run]))
    texts = {column.title: column.text(rows[0]) for column in privacy_columns(rows)}
    assert texts == {"mechanism": "nbafl", "claimed ε": "8.00"}
    assert 'id="privacy"' in write_report([run], tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_caption_says_what_is_protected_under_which_method(make_run, tmp_path):
    def protecting(label, whom):
        run = with_privacy(make_run(label))
        return replace(run, summary=run.summary | {"privacy": {"neighbours": whom, "bound": "a bound"}})

    runs = [protecting("fedavg", "one client is added"), protecting("fedprox", "one client is added")]
    told = "Proved upper bound by a bound for δ = 1e-5. Protected: one client is added. Dashed: the budget."
    assert told in text_of(write_report(runs, tmp_path / "a.html"))
    runs.append(protecting("fedyogi", "one sample"))
    told = "Protected: one client is added (fedavg and fedprox); one sample (fedyogi)."
    assert told in text_of(write_report(runs, tmp_path / "b.html"))


def test_epsilon_is_in_the_table_of_results_and_named_where_it_is_simulated(make_run):
    runs = [with_privacy(make_run("fedavg")), with_privacy(make_run("fedprox"), noise_cohort=5000), make_run("fedyogi")]
    table = final_table(runs)
    (column,) = [column for column in table.columns if column.title == "ε"]
    assert [column.text(row) for row in table.rows] == ["1.55", "1.55 sim.", "–"]
    assert "ε" not in [column.title for column in final_table(runs[2:]).columns]


def test_a_run_without_any_privacy_has_epsilon_without_end(private):
    endless = with_columns(private, epsilon=np.where(np.arange(61) > 0, np.inf, np.nan))
    table = final_table([endless])
    assert table.column("epsilon").text(table.rows[0]) == "∞"


def test_the_head_of_the_page_says_that_epsilon_is_simulated(make_run, tmp_path):
    run = with_privacy(make_run(), noise_cohort=5000)
    assert "ε = 1.55, δ = 1e-5, which is only simulated" in headline([run])
    assert "simulated" not in headline([with_privacy(make_run())])
    (sentence,) = cautions([run])
    assert "20 clients a round had the noise of 5,000" in sentence
    page = text_of(write_report([run], tmp_path / "report.html"))
    assert page.index("only simulated") < page.index("Results")
    assert "Simulated: it would hold with cohorts of 5,000 clients" in page
    from_more = with_privacy(make_run(), noise_cohort=1000, noise_population=10**6)
    (sentence,) = cautions([from_more])
    assert "would hold with cohorts of 1,000 of 1,000,000; these clients were less private" in sentence


def test_the_head_of_the_page_says_that_a_budget_ended_a_run(make_run):
    def stopped(message):
        run = with_privacy(make_run(stop_after=42))
        return replace(run, summary=run.summary | {"message": message})

    (sentence,) = cautions([stopped("stopped early: the privacy budget is spent")])
    assert "stopped after 42 of 60 rounds: its privacy budget of ε = 2.00 is spent" in sentence
    assert cautions([stopped("stopped early: accuracy 0.81 has reached 0.8")]) == []
    assert cautions([with_privacy(make_run())]) == []


def test_what_an_audit_found_is_at_the_top_with_what_it_means(make_run, tmp_path):
    (fine,) = cautions([with_privacy(make_run(), audit=AUDIT)])
    assert "an audit of 500 canary clients shows, with 95% confidence, that ε is at least 0.70" in fine
    assert "agrees with the proved upper bound of 1.55" in fine
    plain = make_run()
    (unproved,) = cautions([replace(plain, summary=plain.summary | {"privacy": {"audit": AUDIT}})])
    assert unproved.endswith("No upper bound is proved.")
    broken = with_privacy(make_run(), audit=AUDIT | {"epsilon_lower": 3.0})
    (sentence,) = cautions([broken])
    assert "above the proved 1.55: the mechanism does not do what it claims" in sentence
    page = text_of(write_report([broken], tmp_path / "a.html"))
    assert page.index("does not do what it claims") < page.index("Results")
    # With less noise than its ε is for, an audit may well find more.
    less_noise = with_privacy(make_run(), audit=AUDIT | {"epsilon_lower": 3.0}, noise_cohort=5000)
    assert privacy_spent(broken).is_refuted
    assert not privacy_spent(less_noise).is_refuted
    simulated = cautions([less_noise])
    assert not any("claims" in one for one in simulated)
    assert any("less noise than the simulated 1.55 is for" in one for one in simulated)


def test_a_page_without_privacy_has_no_such_section(make_run, tmp_path):
    page = write_report([make_run()], tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="privacy"' not in page
    assert 'id="clipping-and-noise"' not in page
    clipped = with_columns(make_run(), clipped_share=np.full(61, 0.25))
    page = write_report([clipped], tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="privacy"' not in page
    assert 'id="clipping-and-noise"' in page


def test_the_line_of_a_round_tells_epsilon_and_attack_success():
    row = {"accuracy": 0.5, "epsilon": 1.234, "attack_success": 0.125}
    assert round_text(row, ACCURACY, {}).endswith(", ε 1.23, attack success 12.5%")
    assert ", ε 1.23 sim." in round_text(row, ACCURACY, {"cohort": 20, "privacy": {"noise_cohort": 5000}})
    assert round_text({"accuracy": 0.5}, ACCURACY, {}).count(",") == 0
    assert round_text({"epsilon": 1.0}, ACCURACY, {}) is None


def test_a_real_run_tells_what_its_transform_measured(tmp_path, capsys):
    run = real_run(tmp_path, name="a", transforms=[Spends], progress=True)
    assert run.privacy.epsilon == pytest.approx(0.8)
    assert run.privacy.budget is None
    assert "round 4 of 4, accuracy" in (shown := capsys.readouterr().err)
    assert "ε 0.80" in shown
    page = text_of(run.path / "report.html")
    assert "Privacy spent over rounds" in page
    assert "50.0%" in page
