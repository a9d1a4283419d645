"""The pure search: suspects, belief, sequential tests, delta debugging, and whole searches against made-up fabrics.

The oracles know the culprits and lie at the rates that the search is told; the search sees answers only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache

import pytest
from bisect_ground import ground
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.bisect import ddmin
from genie.bisect.belief import Answer, Belief, Noise, Question, Way, told_apart
from genie.bisect.choice import Chooser
from genie.bisect.rounds import Ground, waves
from genie.bisect.search import Conclusion, Limits, Search
from genie.bisect.sprt import Rates, Sprt
from genie.bisect.suspects import Suspect, path_tokens, suspects_of, weighted
from genie.topology import LeafSpineConfig, Topology, build, paths

STEADY = Noise(duties=((1.0, 1.0),))


def plain(false_alarm: float, miss: float) -> Noise:
    """No probe is disturbed, nobody intermittent: what can be worked out on paper."""
    return Noise(false_alarm, miss, false_alarm, 0.5, ((1.0, 1.0),))


@cache
def fabric(hosts: int = 16, leaves: int = 4, spines: int = 4) -> Topology:
    return build(LeafSpineConfig(hosts=hosts, leaves=leaves, spines=spines))


def searched(
    guilty: Sequence[str], seed: int, *, noise: Noise = STEADY, duty: float = 1.0, lies: bool = True
) -> tuple[Conclusion, int]:
    """What a search says about a fabric on which the suspects of these names are guilty, and after how many probes."""
    topology = fabric()
    suspects = suspects_of(topology)
    tokens = frozenset().union(*(s.tokens for s in suspects if s.name in guilty))
    oracle = random.Random(f"oracle {seed}")
    search = Search(suspects, ground(topology, seed), noise, Limits(), seed=seed)
    while (probe := search.next()) is not None:
        answers = []
        for question in probe.questions * probe.repeats:
            met = bool(question.ways[0].tokens & tokens) and oracle.random() < duty
            truth = oracle.random() < (1 - noise.miss if met else noise.false_alarm) if lies else met
            answers.append(Answer(question, truth))
        search.learn(answers)
    conclusion = search.conclusion()
    assert conclusion is not None
    return conclusion, search.probes


# -- suspects -----------------------------------------------------------------------------------------------------


def test_suspects_of_a_leaf_spine_are_its_hosts_switches_links_and_single_directions() -> None:
    names = [suspect.name for suspect in suspects_of(fabric(4, 2, 2))]
    assert names[:8] == [f"host h{n}" for n in range(4)] + ["switch leaf0", "switch leaf1", "switch spine0",
                                                           "switch spine1"]  # fmt: skip
    assert names[8:11] == ["link h0-leaf0", "nic h0", "link h0-leaf0 towards h0"]
    assert names[-3:] == ["link leaf1-spine1", "link leaf1-spine1 towards spine1", "link leaf1-spine1 towards leaf1"]
    assert len(names) == 4 + 4 + 3 * 8


def test_a_flow_touches_the_ports_it_leaves_by_and_the_switches_it_passes() -> None:
    (trail,) = paths(fabric(4, 2, 1), "h0", "h3")
    assert path_tokens(trail, "h0") == {
        "port h0/leaf0", "node leaf0", "port leaf0/spine0", "node spine0", "port spine0/leaf1", "node leaf1",
        "port leaf1/h3",
    }  # fmt: skip


def test_scores_move_half_of_the_prior_and_leave_the_rest_findable() -> None:
    made = weighted(suspects_of(fabric(4, 2, 1)), {"leaf0-spine0": 1.0}, expected=1.0)
    own = {suspect.name: suspect.prior for suspect in made}
    assert own["link leaf0-spine0"] == pytest.approx(0.5 / len(made) + 0.5 / 3)
    assert own["host h0"] == pytest.approx(0.5 / len(made))
    assert sum(own.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("score", [math.nan, math.inf, -1.0])
def test_scores_that_are_no_scores_are_refused(score: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        weighted(suspects_of(fabric(4, 2, 1)), {"h0": score})


# -- belief -------------------------------------------------------------------------------------------------------


def suspect(name: str, *tokens: str, prior: float = 0.5) -> Suspect:
    return Suspect(name, "link", name, frozenset(tokens), name, prior)


def test_bayes_by_hand() -> None:
    """One suspect at even odds, one bad answer: 0.9 / (0.9 + 0.1)."""
    question = Question.of("q", frozenset({"t"}))
    belief = Belief([suspect("a", "t")], plain(0.1, 0.1), [question])
    assert belief.marginal(0) == pytest.approx(0.5)
    assert belief.entropy_bits() == pytest.approx(1.0)
    belief.learn([Answer(question, True)])
    assert belief.marginal(0) == pytest.approx(0.9)
    belief.learn([Answer(question, False), Answer(question, False)])
    assert belief.marginal(0) == pytest.approx(0.1)


def test_an_unknown_path_says_in_proportion() -> None:
    """Two ways of equal chance: a bad answer says 0.5 * 0.8 + 0.1 = 0.5 of each against 0.1 of none."""
    question = Question("q", (Way(0.5, frozenset({"s"})), Way(0.5, frozenset({"t"}))))
    belief = Belief([suspect("a", "s"), suspect("b", "t")], plain(0.1, 0.1), [question], most_culprits=1)
    belief.learn([Answer(question, True)])
    # priors of none, {a}, {b} are equal; {a, b} is not considered
    assert [belief.of_set(c) for c in ((), (0,), (1,))] == pytest.approx([0.1 / 1.1, 0.5 / 1.1, 0.5 / 1.1])


def test_a_disturbed_probe_by_hand() -> None:
    """Bad with 0.9 if guilty; if not, with 0.1, or 0.5 where disturbed, which is even: 0.9 / (0.9 + 0.3)."""
    question = Question.of("q", frozenset({"t"}))
    belief = Belief([suspect("a", "t")], Noise(0.1, 0.1, 0.5, 0.5, ((1.0, 1.0),)), [question])
    belief.learn([Answer(question, True)])
    assert belief.marginal(0) == pytest.approx(0.9 / (0.9 + 0.3))


def test_what_goes_bad_all_at_once_says_less_than_what_goes_bad_alone() -> None:
    """Scattered bad answers of one probe speak for a disturbance, one among good ones for a culprit."""
    suspects = [suspect(name, name, prior=0.05) for name in "abcdef"]
    questions = [Question.of(name, frozenset({name})) for name in "abcdef"]
    alone, storm = Belief(suspects, STEADY, questions), Belief(suspects, STEADY, questions)
    for _ in range(2):
        alone.learn([Answer(question, question.name == "a") for question in questions])
        storm.learn([Answer(question, question.name in "abcd") for question in questions])
        storm.learn([Answer(question, False) for question in questions])
    assert alone.marginal(0) > 0.95
    assert storm.marginal(0) < 0.2


def test_a_part_of_a_guilty_switch_is_not_a_second_culprit() -> None:
    whole, part = suspect("switch", "n", prior=0.2), suspect("link", "p", prior=0.2)
    questions = [Question.of("through", frozenset({"n", "p"})), Question.of("beside", frozenset({"n"}))]
    belief = Belief([whole, part], STEADY, questions)
    belief.learn([Answer(question, True) for question in questions])
    assert belief.of_set((0, 1)) == 0.0
    assert belief.of_set((0,)) > 0.9


def test_what_no_probe_tells_apart_is_one_suspect_with_all_names() -> None:
    """Two leaves: what passes a spine passes both its links, and leaves by the one as it came by the other."""
    topology = fabric(4, 2, 2)
    made = ground(topology, 1)
    universe = [made.question(*ends) for ends in made.flows]
    names = {suspect.name for suspect in told_apart(suspects_of(topology, compute=False), universe)}
    assert "switch spine0 or link leaf0-spine0 or link leaf1-spine0" in names
    assert "link leaf0-spine0 towards spine0 or link leaf1-spine0 towards leaf1" in names
    assert {"nic h0", "link h0-leaf0", "link h0-leaf0 towards h0", "switch leaf0"} <= names
    assert sum(name.count("spine1") for name in names) == 9


def test_what_no_probe_meets_is_named() -> None:
    belief = Belief([suspect("a", "t"), suspect("b", "elsewhere")], STEADY, [Question.of("q", frozenset({"t"}))])
    assert [s.name for s in belief.beyond_reach] == ["b"]


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcde"), min_size=1), st.booleans()), max_size=12))
@settings(max_examples=60, deadline=None)
def test_posteriors_add_up_and_do_not_depend_on_the_order(answers: list[tuple[set[str], bool]]) -> None:
    suspects = [suspect(name, name, prior=0.2) for name in "abcde"]
    universe = [Question.of(name, frozenset({name})) for name in "abcde"]
    told = [Answer(Question.of("".join(sorted(tokens)), frozenset(tokens)), bad) for tokens, bad in answers]
    one, other = Belief(suspects, Noise(), universe), Belief(suspects, Noise(), universe)
    for answer in told:
        one.learn([answer])
    for answer in reversed(told):
        other.learn([answer])
    assert sum(h.posterior for h in one.hypotheses()) == pytest.approx(1.0)
    assert [one.marginal(n) for n in range(5)] == pytest.approx([other.marginal(n) for n in range(5)])


# -- choice -------------------------------------------------------------------------------------------------------


def test_half_of_equal_suspects_is_worth_a_bit() -> None:
    suspects = [suspect(name, name, prior=0.01) for name in "abcd"]
    universe = [Question.of(name, frozenset({name})) for name in "abcd"]
    belief = Belief(suspects, STEADY, universe, most_culprits=1)
    belief.learn([Answer(question, True) for question in [Question.of("all", frozenset("abcd"))] * 8])
    chooser = Chooser(belief)
    half = Question.of("half", frozenset("ab"))
    assert chooser.cut_bits([half]) == pytest.approx(1.0, abs=0.01)
    assert chooser.cut_bits([Question.of("one", frozenset("a"))]) == pytest.approx(0.811, abs=0.01)
    assert chooser.cut_bits([half, Question.of("other", frozenset("ac"))]) == pytest.approx(2.0, abs=0.01)
    assert chooser.worth([half, half]) > chooser.worth([half])


# -- rounds -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.booleans(), st.permutations(list(range(16))))
@settings(max_examples=25, deadline=None)
def test_no_wave_overloads_a_port_whichever_way_its_flows_go(seed: int, known: bool, order: list[int]) -> None:
    made = ground(fabric(), seed, known=known)
    pairs = [(min(p), max(p)) for p in zip(order[::2], order[1::2], strict=True)]
    cut = waves(made, pairs)
    assert sorted(pair for wave in cut for pair in wave) == sorted(pairs)
    for wave in cut:
        load: dict[str, int] = {}
        for a, b in wave:
            for ends in ((a, b), (b, a)):
                for token in {t for way in made.flows[ends] for t in way.tokens if t in made.port_bps}:
                    load[token] = load.get(token, 0) + made.flow_bps[ends]
        assert all(load[token] <= made.port_bps[token] for token in load)


def test_where_rates_are_not_known_a_wave_is_one_pair() -> None:
    made = ground(fabric(4, 2, 2), 1)
    blind = Ground(made.hosts, made.flows, dict.fromkeys(made.flows, 0), made.port_bps)
    assert waves(blind, [(0, 1), (2, 3)]) == (((0, 1),), ((2, 3),))


# -- sequential test, delta debugging -----------------------------------------------------------------------------


def test_wald_by_hand() -> None:
    """Each answer moves by ln 9; the limits are ln 99 up and down: three of a kind decide."""
    test = Sprt(Rates())
    assert (test.decision, test.answers_left) == (None, 3)
    for _ in range(3):
        assert test.decision is None
        test.tell(True)
    assert test.decision is True
    assert test.answers_left == 0
    assert test.confidence == pytest.approx(9**3 / (9**3 + 1))


@pytest.mark.parametrize("guilty", [False, True], ids=["good", "bad"])
def test_the_sequential_test_keeps_its_error_rates(guilty: bool) -> None:
    rng = random.Random(7)
    wrong = asked = 0
    for _ in range(3000):
        test = Sprt(Rates(false_alarm=0.05, miss=0.05, noise_false_alarm=0.2, noise_miss=0.2))
        while test.decision is None:
            test.tell(rng.random() < (0.8 if guilty else 0.2))
        wrong += test.decision is not guilty
        asked += test.answers
    assert wrong / 3000 < 0.06
    assert asked / 3000 < 6


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_rates_that_decide_nothing_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="between 0 and"):
        Rates(noise_miss=rate)


@given(st.sets(st.integers(0, 31), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_interacting_changes_are_found_together(guilty: set[int]) -> None:
    changes = [f"c{n}" for n in range(32)]
    wanted = {f"c{n}" for n in guilty}
    assert [set(found) for found in ddmin.culprits(changes, lambda subset: wanted <= set(subset))] == [wanted]


@given(st.sets(st.integers(0, 31), max_size=4))
@settings(max_examples=60, deadline=None)
def test_independent_changes_are_found_one_after_the_other(guilty: set[int]) -> None:
    changes = [f"c{n}" for n in range(32)]
    wanted = {f"c{n}" for n in guilty}
    found = ddmin.culprits(changes, lambda subset: bool(wanted & set(subset)))
    assert sorted(found) == sorted((change,) for change in wanted)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 32, 100])
def test_one_guilty_change_costs_no_more_than_was_said(count: int) -> None:
    for guilty in {0, count // 2, count - 1}:
        asked: list[tuple[str, ...]] = []

        def bad(subset: tuple[str, ...], asked: list[tuple[str, ...]] = asked, name: str = f"c{guilty}") -> bool:
            asked.append(subset)
            return name in subset

        assert ddmin.culprits([f"c{n}" for n in range(count)], bad) == ((f"c{guilty}",),)
        assert len(asked) <= ddmin.expected_tests(count)
        assert len(set(asked)) == len(asked)


# -- whole searches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "guilty",
    [
        "host h3", "nic h0", "link h7-leaf1", "link h9-leaf2 towards h9", "switch leaf2", "switch spine1",
        "link leaf1-spine3", "link leaf3-spine0 towards spine0", "link leaf0-spine2 towards leaf0",
    ],
)  # fmt: skip
def test_each_kind_of_culprit_is_found_where_answers_do_not_lie(guilty: str) -> None:
    found, probes = searched([guilty], 3, lies=False)
    assert (found.word, [s.name for s in found.culprits]) == ("found", [guilty])
    assert found.confidence >= 0.95
    assert probes <= 8


def test_a_healthy_fabric_is_called_one() -> None:
    found, probes = searched([], 5, lies=False)
    assert (found.word, found.culprits, found.duty) == ("none", (), 1.0)
    assert probes <= 6


def test_two_culprits_are_found_together() -> None:
    found, _ = searched(["link leaf1-spine3", "nic h12"], 2, lies=False)
    assert {s.name for s in found.culprits} == {"link leaf1-spine3", "nic h12"}


def test_searches_among_lies_are_right_as_often_as_they_say() -> None:
    """Drawn culprits, none to two; confidence 95 % each, so of 9 at most 2 wrong but once in a hundred times."""
    names = [s.name for s in suspects_of(fabric())]
    right, used = 0, []
    for seed in range(9):
        guilty = random.Random(f"guilty {seed}").sample(names, seed % 3)
        found, probes = searched(guilty, seed)
        right += found.word != "inconclusive" and {s.name for s in found.culprits} == set(guilty)
        used.append(probes)
    assert right >= 7
    assert sorted(used)[4] <= 2 * math.log2(len(names)) + 6


def test_an_intermittent_culprit_is_found_and_called_so() -> None:
    noise = Noise(false_alarm=0.01, duties=((1.0, 0.5), (0.2, 0.5)))
    found, _ = searched(["link leaf1-spine3"], 4, noise=noise, duty=0.2)
    assert ([s.name for s in found.culprits], found.duty) == (["link leaf1-spine3"], 0.2)


@pytest.mark.parametrize(
    ("guilty", "named"),
    [("nic h5", "nic h5"), ("link leaf0-spine2", " or ".join(f"link leaf0-spine{n}" for n in range(4)))],
)
def test_over_unknown_paths_a_host_is_named_and_an_uplink_as_one_of_its_leaf(guilty: str, named: str) -> None:
    """Told of no path, the search knows the leaf; which of its equal uplinks it is, it cannot know, and says so."""
    topology = fabric()
    suspects = suspects_of(topology)
    culprit = next(s for s in suspects if s.name == guilty)
    blind = ground(topology, 1, known=False)
    search = Search(suspects, blind, STEADY, Limits(probes=20), seed=1)
    while (probe := search.next()) is not None:
        truth = ground(topology, search.probes)  # other ports, other paths
        places = {name: n for n, name in enumerate(truth.hosts)}
        answers = []
        for question in probe.questions:
            source, _, target = question.name.partition(">")
            tokens = truth.flows[places[source], places[target]][0].tokens if target else question.ways[0].tokens
            answers.append(Answer(question, bool(tokens & culprit.tokens)))
        search.learn(answers)
    conclusion = search.conclusion()
    assert conclusion is not None
    assert [s.name for s in conclusion.culprits] == [named]


def test_the_same_answers_lead_to_the_same_probe() -> None:
    def begun() -> Search:
        return Search(suspects_of(fabric()), ground(fabric(), 1), STEADY, Limits(), seed=9)

    one, other = begun(), begun()
    for _ in range(3):
        probe = one.next()
        assert probe is not None
        assert probe == other.next()
        answers = [Answer(question, "port leaf0/spine1" in question.ways[0].tokens) for question in probe.questions]
        one.learn(answers)
        other.learn(answers)
    assert one.conclusion() == other.conclusion()
    assert one.probes_left() == other.probes_left()


def test_the_limit_of_probes_ends_a_search_that_knows_nothing() -> None:
    search = Search(suspects_of(fabric()), ground(fabric(), 1), STEADY, Limits(probes=3), seed=1)
    while search.next() is not None:
        search.learn([])
    conclusion = search.conclusion()
    assert conclusion is not None
    assert (conclusion.word, conclusion.culprits) == ("inconclusive", ())
    assert "3 probes" in conclusion.why
