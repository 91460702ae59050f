"""A container exceeds after a whole grace of readings that all show it; what is unknown neither proves nor clears."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpu_device_plugin.features.over_use.rules import (
    Excess,
    OverUseRules,
    Response,
    Watch,
    annotation,
    event_note,
    is_short,
    outlook,
    use_of,
)
from gpu_device_plugin.features.use.rules.container_gpus import ContainerGpus
from gpu_device_plugin.features.use.rules.process_use import AttributedUse, UseReading, attribute
from gpu_device_plugin.kubelet.cgroup_names import CgroupOwner
from gpu_device_plugin.model.allocations import Place
from gpu_device_plugin.model.pods import Pod
from gpu_device_plugin.model.telemetry import GpuProcess, GpuReading

RULES = OverUseRules(slack_mib=512, grace_s=180)
PLACE: Place = ("u", "main", "GPU-0")
FREE = {"GPU-0": 0, "GPU-1": 0}


def use(
    used: int | None, granted: int = 4096, *, pod: str = "u", name: str = "main", gpu: str = "GPU-0"
) -> AttributedUse:
    return AttributedUse(pod, name, gpu, granted, used)


def reading(at: float, *uses: AttributedUse, blind: str = "", **used: int | None) -> UseReading:
    gpus = {f"GPU-{key[1:]}": amount for key, amount in used.items()}
    return UseReading(at, uses, {**FREE, **gpus}, blind=blind)


def watched(*readings: UseReading, rules: OverUseRules = RULES) -> Watch:
    watch = Watch()
    for each in readings:
        watch = watch.after(each, rules)
    return watch


def exceeding(*readings: UseReading, rules: OverUseRules = RULES) -> list[Place]:
    return list(watched(*readings, rules=rules).excesses(rules, {}))


@pytest.mark.parametrize(
    ("used", "granted", "exceeded"),
    [
        (4608, 4096, False),  # the slack is allowed
        (4609, 4096, True),
        (0, 4096, False),
        (86016, 81920, False),  # 5 % of 80 GiB are more than 512 MiB
        (86017, 81920, True),
        (512, 0, False),  # a trespasser has the same slack
        (513, 0, True),
    ],
)
def test_the_slack_is_the_larger_of_the_two(used: int, granted: int, *, exceeded: bool) -> None:
    assert RULES.exceeded(used, granted) is exceeded


def test_a_container_exceeds_after_the_grace_and_is_told_since_when() -> None:
    early = [reading(at, use(6120)) for at in (100, 115, 279.9)]
    assert exceeding(*early) == []
    found = watched(*early, reading(280, use(6200))).excesses(RULES, {"u": (known := Pod("u", "default", "p"))})
    assert found == {PLACE: Excess(PLACE, 6200, 4096, 100, known)}
    assert found[PLACE].excess_mib == 2104


def test_a_container_that_may_borrow_exceeds_beyond_its_limit() -> None:
    within, beyond = replace(use(6120), limit_mib=6120), replace(use(6120), limit_mib=5120)
    assert exceeding(reading(0, within), reading(500, within)) == []
    found = watched(reading(0, beyond), reading(500, beyond)).excesses(RULES, {})
    assert found == {PLACE: Excess(PLACE, 6120, 4096, 0, limit_mib=5120)}
    assert found[PLACE].excess_mib == 1000
    # Its owner may want less than the kubelet holds for it.
    less = replace(use(4000), limit_mib=2048)
    assert exceeding(reading(0, less), reading(500, less)) == [PLACE]


def test_a_container_that_was_told_the_limit_of_another_may_use_that() -> None:
    """It exceeds only beyond it: the kubelet, which names nobody, asked in another order than the agent expected."""
    told = ContainerGpus("u", "main", {"GPU-0": 4096}, started_mib=10240, misdirected=True)
    within, beyond = replace(use(10240), holding=told), replace(use(11264), holding=told)
    assert exceeding(reading(0, within), reading(500, within)) == []
    found = watched(reading(0, beyond), reading(500, beyond)).excesses(RULES, {})
    assert (found[PLACE].limit_mib, found[PLACE].excess_mib) == (10240, 1024)
    own = replace(told, misdirected=False)
    assert exceeding(*(reading(at, replace(within, holding=own)) for at in (0, 500))) == [PLACE]
    assert exceeding(*(reading(at, replace(within, holding=replace(told, started_mib=None))) for at in (0, 500)))


def test_one_reading_within_the_part_clears() -> None:
    high = [reading(at, use(6120)) for at in (0, 100, 200, 300)]
    assert exceeding(*high) == [PLACE]
    assert exceeding(*high, reading(301, use(4096))) == []
    assert exceeding(*high, reading(301, use(4096)), reading(310, use(6120)), reading(489, use(6120))) == []


@pytest.mark.parametrize(
    "untold",
    [
        reading(200, use(None)),
        reading(200, blind="the agent sees no processes"),
        reading(200, g0=None),  # this GPU could not be read
    ],
    ids=["its use is unknown", "blind", "the GPU is unread"],
)
def test_a_reading_that_tells_nothing_neither_proves_nor_clears(untold: UseReading) -> None:
    before = [reading(0, use(6120)), reading(170, use(6120))]
    assert exceeding(*before, untold) == []
    # 170 s are proven; the time to the next reading that tells it does not count, the 10 s after that do.
    assert exceeding(*before, untold, reading(215, use(6120))) == []
    assert exceeding(*before, untold, reading(215, use(6120)), reading(225, use(6120))) == [PLACE]
    # An excess stays one meanwhile.
    assert exceeding(*before, reading(190, use(6120)), untold) == [PLACE]


def test_after_a_grace_without_a_telling_reading_the_evidence_is_too_old() -> None:
    before = [reading(0, use(6120)), reading(190, use(6120))]
    kept, late = reading(370, use(None)), reading(371, use(None))
    assert exceeding(*before, kept) == [PLACE]
    assert exceeding(*before, late) == []
    assert exceeding(*before, late, reading(380, use(6120)), reading(390, use(6120))) == []


def test_a_gpu_that_vanished_is_used_by_nobody() -> None:
    gone = UseReading(200, (), {"GPU-1": 0})
    assert exceeding(reading(0, use(6120)), reading(190, use(6120)), gone) == []


def test_whole_gpus_never_exceed() -> None:
    whole = replace(use(90000), holding=ContainerGpus("u", "main", {"GPU-0": 4096}, whole=True))
    assert exceeding(reading(0, whole), reading(500, whole)) == []
    shared = replace(use(90000), holding=ContainerGpus("u", "main", {"GPU-0": 4096}))
    assert exceeding(reading(0, shared), reading(500, shared)) == [PLACE]


@pytest.mark.parametrize(("old", "new", "exceeds"), [(2500, 2500, True), (2500, None, False), (1000, 3000, False)])
def test_the_processes_of_a_restarting_container_count_together(old: int, new: int | None, *, exceeds: bool) -> None:
    processes = GpuProcess(1, old), GpuProcess(2, new)
    owners = {1: CgroupOwner("u", "a" * 64), 2: CgroupOwner("u", "b" * 64)}
    held = ContainerGpus("u", "main", {"GPU-0": 4096})
    readings = [attribute([GpuReading("GPU-0", processes, 6000)], owners, [held], at=at) for at in (0, 180)]
    assert exceeding(*readings) == ([PLACE] if exceeds else [])


def test_two_generations_of_a_pod_are_two_pods() -> None:
    old, new = use(6120), use(6120, pod="v")
    assert exceeding(reading(0, old), reading(90, old), reading(100, new), reading(200, new)) == []


def test_a_reading_that_is_not_newer_is_ignored() -> None:
    watch = watched(reading(0, use(6120)), reading(100, use(6120)))
    assert watch.after(reading(100, use(0)), RULES) is watch
    assert watch.after(reading(-1e9, use(0)), RULES) is watch


def test_changed_settings_apply_to_the_evidence_there_is() -> None:
    watch = watched(reading(0, use(6120)), reading(100, use(6120)))
    assert list(watch.excesses(replace(RULES, grace_s=60), {})) == [PLACE]
    assert list(watch.excesses(RULES, {})) == []
    assert watch.after(reading(110, use(6120)), replace(RULES, slack_mib=4096)).evidence == {}


# --- Who should go ----------------------------------------------------------------------------------------------------

BIG = Pod("u", "default", "big")
EVICT = replace(RULES, response=Response.EVICT)
WHEN_SHORT = replace(RULES, response=Response.EVICT_WHEN_SHORT)
OTHER = use(1000, 4096, pod="v")


def wanted(
    rules: OverUseRules, *last: AttributedUse, used: int | None = 7120, known: bool = True, total: int = 10000
) -> list[int]:
    readings = [reading(0, use(6120)), reading(180, use(6120)), reading(190, *last, g0=used)]
    watch = watched(*readings, rules=rules)
    excesses = watch.excesses(rules, {"u": BIG} if known else {}).values()
    found = watch.candidates(excesses, readings[-1], rules, {"GPU-0": total})
    assert all((each.pod, each.uuid) == (BIG, "GPU-0") for each in found)
    return [each.weight for each in found]


def test_only_the_settings_have_a_pod_evicted() -> None:
    assert wanted(RULES, use(6120), OTHER) == []
    assert wanted(EVICT, use(6120), OTHER) == [2024]


def test_nobody_goes_whom_the_api_does_not_know_or_whose_use_is_unknown_now() -> None:
    assert wanted(EVICT, use(6120), known=False) == []
    assert wanted(EVICT, use(None)) == []


@pytest.mark.parametrize(
    ("others", "used", "total", "short"),
    [
        ([OTHER], 7120, 10000, True),  # 2880 are free, and the other may take 3096 more
        ([OTHER], 7120, 10216, False),  # just enough
        ([use(4096, pod="v")], 10000, 10000, False),  # it has all of its part
        ([use(9000, pod="v")], 10000, 10000, False),  # it exceeds, too
        ([use(None, pod="v")], 10000, 10000, False),  # unknown: not proven
        ([use(0, name="second")], 10000, 10000, False),  # its own pod
        ([use(0, pod="v", gpu="GPU-1")], 10000, 10000, False),
        ([OTHER], None, 10000, False),
        ([use(1000, 2000, pod="v"), use(0, 2000, pod="w")], 7120, 10000, True),
    ],
)
def test_a_gpu_is_short_if_others_could_not_take_what_they_were_granted(
    others: list[AttributedUse], used: int | None, total: int, *, short: bool
) -> None:
    assert wanted(WHEN_SHORT, use(6120), *others, used=used, total=total) == ([2024] if short else [])


def test_a_gpu_of_unknown_size_is_not_short() -> None:
    assert not is_short(reading(0, OTHER, g0=99999), "GPU-0", "u", None)


# --- Any history ------------------------------------------------------------------------------------------------------


class History(RuleBasedStateMachine):
    """A naive account of one container beside the watch: what consecutive readings prove, by the definition."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.in_force = RULES
        self.watch = Watch()
        self.told: list[tuple[float, bool | None, float]] = []
        """Time of each reading, whether it showed the container beyond its part (None: it did not tell), the grace."""

    def _read(self, seconds: float, used: int | None, *, by_blindness: bool = False) -> None:
        self.now += seconds
        uses = () if by_blindness else (use(used), use(100, pod="w"))
        self.watch = self.watch.after(reading(self.now, *uses, blind="blind" * by_blindness), self.in_force)
        beyond = None if used is None else self.in_force.exceeded(used, 4096)
        self.told.append((self.now, beyond, self.in_force.grace_s))

    @rule(grace_s=st.sampled_from([60, 180, 600]))
    def change_the_grace(self, grace_s: int) -> None:
        self.in_force = replace(RULES, grace_s=grace_s)

    @rule(seconds=st.integers(1, 200), used=st.sampled_from([0, 4096, 4608, 4609, 9000]))
    def tell(self, seconds: int, used: int) -> None:
        self._read(seconds, used)

    @rule(seconds=st.integers(1, 60))
    def exceed(self, seconds: int) -> None:
        self._read(seconds, 9000)

    @rule(seconds=st.integers(1, 100), blind=st.booleans())
    def do_not_tell(self, seconds: int, *, blind: bool) -> None:
        self._read(seconds, None, by_blindness=blind)

    @rule(back=st.integers(0, 10_000), used=st.sampled_from([0, 9000]))
    def read_an_old_clock(self, back: int, used: int) -> None:
        before = self.watch
        self.watch = self.watch.after(reading(self.now - back, use(used)), self.in_force)
        if self.told:
            assert self.watch is before
        else:
            self.watch = Watch()

    def _proven_s(self) -> float | None:
        """Return for how long readings prove the excess up to now; None: nothing is proven."""
        last: float | None = None
        proven, sure = 0.0, False
        for at, beyond, grace_s in self.told:
            if beyond is False:
                last, proven, sure = None, 0.0, False
            elif beyond is None:
                sure = False
                if last is not None and at - last > grace_s:
                    last, proven = None, 0.0
            else:
                proven += at - last if last is not None and sure else 0.0
                last, sure = at, True
        return None if last is None else proven

    @invariant()
    def exceeds_when_it_is_proven(self) -> None:
        proven = self._proven_s()
        expected = {PLACE} if proven is not None and proven >= self.in_force.grace_s else set()
        assert set(self.watch.excesses(self.in_force, {})) == expected
        assert len(self.watch.evidence) <= 1


TestHistory = History.TestCase


EXCESS = Excess(("u", "main", "GPU-0"), 6120, 4096, 100, Pod("u", "default", "p"))


def test_an_event_has_the_numbers_the_time_and_the_outlook() -> None:
    assert event_note(EXCESS, "GPU 0", 280, Response.REPORT) == (
        "container main uses 6,120 MiB of GPU 0, was granted 4,096 MiB, for 3 min; "
        "this is only reported (setting over_use)"
    )


def test_a_trespasser_was_given_nothing_and_may_have_no_name() -> None:
    found = replace(EXCESS, place=("u", "", "GPU-0"), granted_mib=0)
    assert use_of(found, "GPU 0") == "a container uses 6,120 MiB of GPU 0, was not assigned that GPU"


def test_who_may_borrow_is_told_its_limit() -> None:
    found = replace(EXCESS, limit_mib=5120)
    assert use_of(found, "GPU 0") == "container main uses 6,120 MiB of GPU 0, may use up to 5,120 MiB"


def test_a_name_cannot_control_a_terminal() -> None:
    assert "\x1b" not in use_of(replace(EXCESS, place=("u", "\x1b[2J", "g")), "GPU 0")


@pytest.mark.parametrize(
    ("pod", "response", "told"),
    [
        (EXCESS.pod, Response.REPORT, "this is only reported (setting over_use)"),
        (EXCESS.pod, Response.SUSPENDED, "no pod is evicted while another plugin hands out GPUs of this node"),
        (EXCESS.pod, Response.EVICT, "the pod is evicted, one pod per GPU at a time"),
        (
            EXCESS.pod,
            Response.EVICT_WHEN_SHORT,
            "the pod is evicted as soon as the GPU has too little free memory for what others were granted",
        ),
        (None, Response.EVICT, "it is not evicted: it is not known in the API"),
        (Pod("u", "kube-system", "p"), Response.EVICT, "it is not evicted: it is in the namespace kube-system"),
        (Pod("u", "default", "p", deleting=True), Response.EVICT, "the pod is ending"),
    ],
)
def test_what_will_happen(pod: Pod | None, response: Response, told: str) -> None:
    assert outlook(replace(EXCESS, pod=pod), response) == told


def test_an_annotation_has_the_largest_excesses_of_its_pod() -> None:
    told = [(replace(EXCESS, used_mib=6000 + n, place=("u", f"c{n}", "g")), "GPU 0", "then") for n in range(6)]
    found = annotation(told, Response.REPORT)
    assert found.startswith(
        "container c5 uses 6,005 MiB of GPU 0, was granted 4,096 MiB, since then; container c4 uses"
    )
    assert found.endswith(" and 2 more; this is only reported (setting over_use)")
    assert annotation(told[:1], Response.REPORT).count(";") == 1
