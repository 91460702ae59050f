"""One GPU under the MPS supervisor: step by step, and in any order of what may happen to it."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_device_plugin.features.mps.contract import MpsGpu, MpsStatus, is_uuid
from gpu_device_plugin.features.mps.rules.mps_daemon import (
    DEFAULT,
    EXCLUSIVE,
    KILL_S,
    QUIT_S,
    SILENT_S,
    Act,
    Daemon,
    Seen,
    Server,
    decide,
    did,
    failed,
    short_name,
)

IDLE = Seen(wanted_mib=None, mode=DEFAULT, alive=False)
WANTED = Seen(wanted_mib=4096, mode=DEFAULT, alive=False)
READY = Seen(wanted_mib=4096, mode=EXCLUSIVE, alive=True)
SERVES = Daemon(MpsStatus.READY, before=DEFAULT, running=True, limit_mib=4096)


# --- Step by step -----------------------------------------------------------------------------------------------------


def test_a_gpu_is_exclusive_before_its_daemon_starts_and_limited_before_it_is_ready() -> None:
    daemon, act = decide(Daemon(), WANTED, 0)
    assert (daemon.status, daemon.before, act) == (MpsStatus.STARTING, DEFAULT, Act.SET_EXCLUSIVE)
    daemon, act = decide(did(daemon, Act.SET_EXCLUSIVE, WANTED, 0), replace(WANTED, mode=EXCLUSIVE), 0)
    assert (daemon.status, daemon.before, act) == (MpsStatus.STARTING, DEFAULT, Act.START)
    daemon, act = decide(did(daemon, Act.START, WANTED, 1), READY, 1)
    assert (daemon.status, act) == (MpsStatus.STARTING, Act.SET_LIMIT)
    daemon, act = decide(did(daemon, Act.SET_LIMIT, READY, 1), READY, 1)
    assert (daemon.status, daemon.why, daemon.limit_mib, act) == (MpsStatus.READY, "", 4096, None)


def test_what_is_told_has_clients_servers_and_the_limit() -> None:
    seen = replace(READY, servers=(Server(70, 2), Server(71, 1)))
    daemon, act = decide(SERVES, seen, 0)
    assert act is None
    assert daemon.as_state("/p") == MpsGpu(MpsStatus.READY, "", "/p", 3, (70, 71), 4096)
    faulty, _ = decide(SERVES, replace(READY, servers=(Server(70, 2, fault=True),)), 0)
    assert faulty.as_state("/p").limit_mib == 0


def test_a_larger_limit_is_set_while_the_daemon_stays_ready() -> None:
    daemon, act = decide(SERVES, replace(READY, wanted_mib=8192), 0)
    assert (daemon.status, daemon.limit_mib, act) == (MpsStatus.READY, 4096, Act.SET_LIMIT)
    daemon = failed(daemon, Act.SET_LIMIT, "no answer within 5 s", 0)
    assert decide(daemon, replace(READY, wanted_mib=8192), 0.5) == (daemon, None)
    assert (daemon.status, daemon.why) == (MpsStatus.FAILED, "no answer within 5 s")


def test_a_daemon_that_runs_is_adopted_by_a_supervisor_that_knows_nothing() -> None:
    daemon, act = decide(Daemon(), READY, 0)
    assert (daemon.before, act) == (DEFAULT, Act.SET_LIMIT)


@pytest.mark.parametrize("before", ["", DEFAULT, "PROHIBITED"])
def test_an_unwanted_daemon_quits_and_then_the_mode_is_as_before(before: str) -> None:
    """A mode that nobody remembers becomes DEFAULT."""
    unwanted = replace(READY, wanted_mib=None)
    daemon, act = decide(replace(SERVES, before=before), unwanted, 10)
    assert (daemon.status, act) == (MpsStatus.STOPPING, Act.QUIT)
    daemon = did(daemon, Act.QUIT, unwanted, 10)
    assert decide(daemon, unwanted, 10 + QUIT_S - 1) == (daemon, None)
    daemon, act = decide(daemon, replace(unwanted, alive=False), 20)
    assert (daemon.status, daemon.before, act) == (MpsStatus.STOPPING, before or DEFAULT, Act.SET_BACK)
    daemon = did(daemon, Act.SET_BACK, unwanted, 20)
    assert decide(daemon, replace(IDLE, mode=before or DEFAULT), 20) == (Daemon(), None)


def test_a_daemon_that_does_not_quit_is_killed_and_again_if_it_must_be() -> None:
    unwanted = replace(READY, wanted_mib=None)
    daemon, _ = decide(SERVES, unwanted, 0)
    daemon = failed(daemon, Act.QUIT, "no answer within 5 s", 5)
    assert daemon.status is MpsStatus.STOPPING
    daemon, act = decide(daemon, unwanted, QUIT_S)
    assert act is Act.KILL
    daemon = did(daemon, Act.KILL, unwanted, QUIT_S)
    assert decide(daemon, unwanted, QUIT_S + KILL_S - 1)[1] is None
    assert decide(daemon, unwanted, QUIT_S + KILL_S)[1] is Act.KILL
    assert decide(daemon, replace(unwanted, alive=False), QUIT_S + 1)[1] is Act.SET_BACK


def test_a_gpu_that_is_wanted_again_gets_a_new_daemon_after_the_old_one() -> None:
    daemon, _ = decide(SERVES, replace(READY, wanted_mib=None), 0)
    assert decide(daemon, READY, 1) == (daemon, None)
    daemon, act = decide(daemon, replace(READY, alive=False), 2)
    assert (daemon.status, act) == (MpsStatus.STARTING, Act.START)


def test_a_daemon_that_has_ended_is_started_again_each_time_later() -> None:
    gone = replace(READY, alive=False)
    daemon, now_s, pauses = SERVES, 100.0, []
    for _ in range(8):
        daemon, act = decide(replace(daemon, running=True), gone, now_s)
        assert (daemon.status, daemon.why, act) == (MpsStatus.FAILED, "the daemon has ended by itself", None)
        assert decide(daemon, gone, daemon.retry_s - 0.5) == (daemon, None)
        pauses.append(daemon.retry_s - now_s)
        now_s = daemon.retry_s
        daemon, act = decide(daemon, gone, now_s)
        assert act is Act.START
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    daemon, _ = decide(replace(daemon, running=True), gone, now_s + 60)
    assert daemon.retry_s - now_s == 61


def test_a_fault_lasts_until_the_clients_have_ended() -> None:
    daemon, act = decide(SERVES, replace(READY, servers=(Server(70, 2, fault=True), Server(71, 0))), 0)
    assert (daemon.status, act) == (MpsStatus.FAULT, None)
    assert daemon.why.endswith("new ones are refused until its 2 present clients have ended")
    daemon, _ = decide(daemon, replace(READY, servers=(Server(70, 1, fault=True),)), 0)
    assert daemon.why.endswith("until its present client has ended")
    daemon, _ = decide(daemon, READY, 1)
    assert (daemon.status, daemon.why) == (MpsStatus.READY, "")


def test_a_daemon_without_answers_is_out_of_service_and_killed_after_a_while() -> None:
    silent = replace(READY, silence="no answer within 5 s")
    daemon, act = decide(SERVES, silent, 100)
    assert (daemon.status, daemon.why, act) == (MpsStatus.FAILED, "no answer within 5 s", None)
    daemon, act = decide(daemon, silent, 100 + SILENT_S - 1)
    assert act is None
    again, _ = decide(daemon, READY, 100 + SILENT_S - 1)
    assert (again.status, again.silent_s) == (MpsStatus.READY, None)
    daemon, act = decide(daemon, silent, 100 + SILENT_S)
    assert (daemon.status, act) == (MpsStatus.FAILED, Act.KILL)
    daemon, act = decide(did(daemon, Act.KILL, silent, 160), replace(READY, alive=False), 165)
    assert (daemon.status, act) == (MpsStatus.STARTING, Act.START)


def test_a_mode_that_somebody_changed_is_set_again_and_no_client_is_sent_there_meanwhile() -> None:
    seen = replace(READY, mode=DEFAULT)
    daemon, act = decide(SERVES, seen, 100)
    assert (daemon.status, act) == (MpsStatus.FAILED, Act.SET_EXCLUSIVE)
    assert daemon.why == "the compute mode is DEFAULT, in which clients could go without a limit"
    daemon = failed(daemon, Act.SET_EXCLUSIVE, "no permission", 100)
    assert decide(daemon, seen, 100.5)[1] is None


def test_a_driver_that_does_not_answer_for_once_takes_no_daemon_out_of_service() -> None:
    assert decide(SERVES, replace(READY, mode=None), 0) == (SERVES, None)
    daemon, act = decide(Daemon(), replace(READY, mode=None), 0)
    assert (daemon.status, act) == (MpsStatus.FAILED, None)
    daemon, act = decide(Daemon(), replace(WANTED, mode=None), 0)
    assert (daemon.status, daemon.why, act) == (
        MpsStatus.FAILED,
        "the driver does not tell the compute mode of the GPU",
        None,
    )
    daemon, act = decide(replace(SERVES, running=False), replace(IDLE, mode=None), 0)
    assert (daemon.status, daemon.before, act) == (MpsStatus.FAILED, DEFAULT, None)


@pytest.mark.parametrize("alive", [False, True])
def test_a_gpu_that_the_driver_does_not_name_gets_no_daemon(alive: bool) -> None:  # noqa: FBT001
    daemon, act = decide(Daemon(), replace(WANTED, mode="", alive=alive), 0)
    assert (daemon.status, daemon.why, act) == (MpsStatus.FAILED, "the driver does not name this GPU", None)
    assert decide(daemon, replace(IDLE, mode=""), 1) == (Daemon(), None)


def test_a_mode_that_cannot_be_set_back_is_tried_again() -> None:
    left = replace(IDLE, mode=EXCLUSIVE)
    daemon, act = decide(Daemon(), left, 100)
    assert act is Act.SET_BACK
    daemon = failed(daemon, Act.SET_BACK, "no permission", 100)
    assert decide(daemon, left, 100.5) == (daemon, None)
    assert (daemon.status, daemon.why) == (MpsStatus.FAILED, "no permission")
    assert decide(daemon, left, 101)[1] is Act.SET_BACK


# --- In any order -----------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A GPU, its daemons, and a supervisor of which only the file survives a restart."""

    mode: str = DEFAULT
    daemons: list[int] = field(default_factory=list)
    """The limit of each that runs."""
    hangs: bool = False
    disk: str = ""


class Machine(RuleBasedStateMachine):
    """Whatever happens: never two daemons, and in the end the GPU is as it is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.daemon = Daemon()
        self.wanted: int | None = None
        self.now_s = 0.0
        self.asked_to_quit: float | None = None

    def seen(self) -> Seen:
        alive = bool(self.world.daemons)
        return Seen(self.wanted, self.world.mode, alive, "it hangs" if alive and self.world.hangs else "")

    @rule(works=st.booleans(), dies=st.booleans())
    def step(self, *, works: bool, dies: bool) -> None:
        """One step of the supervisor; it may die between what it wrote and what it did."""
        seen = self.seen()
        self.daemon, act = decide(self.daemon, seen, self.now_s)
        self.world.disk = self.daemon.before
        if act is None:
            return
        if works:
            self.act(act)
        if dies:
            self.restart()
        elif works:
            self.daemon = did(self.daemon, act, seen, self.now_s)
        else:
            self.daemon = failed(self.daemon, act, "it failed", self.now_s)

    def act(self, act: Act) -> None:
        world = self.world
        match act:
            case Act.SET_EXCLUSIVE:
                world.mode = EXCLUSIVE
            case Act.START:
                assert world.mode == EXCLUSIVE
                assert not world.daemons, "a second daemon"
                world.daemons.append(0)
            case Act.SET_LIMIT:
                assert self.wanted is not None
                world.daemons = [self.wanted]
            case Act.QUIT:
                self.asked_to_quit = self.now_s
                if not world.hangs:
                    world.daemons.clear()
            case Act.KILL:
                world.daemons.clear()
            case Act.SET_BACK:
                assert not world.daemons, "clients without a limit"
                world.mode = self.daemon.before

    @rule()
    def restart(self) -> None:
        self.daemon = Daemon(before=self.world.disk)

    @rule(limit=st.none() | st.sampled_from([1024, 4096]))
    def want(self, limit: int | None) -> None:
        self.wanted = limit

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0, 600.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.world.daemons)
    @rule()
    def end_daemon(self) -> None:
        self.world.daemons.clear()

    @rule(hangs=st.booleans())
    def hang(self, *, hangs: bool) -> None:
        self.world.hangs = hangs

    @rule(mode=st.sampled_from([DEFAULT, EXCLUSIVE]))
    def somebody_sets_the_mode(self, mode: str) -> None:
        self.world.mode = mode

    @rule()
    def rest(self) -> None:
        """Nothing else happens for a while, and everything works."""
        self.world.hangs = False
        for _ in range(200):
            self.step(works=True, dies=False)
            self.now_s += 1
        if self.wanted is None:
            assert (self.world.mode, self.world.daemons) == (DEFAULT, [])
            assert self.daemon == Daemon()
        else:
            assert (self.world.mode, self.world.daemons) == (EXCLUSIVE, [self.wanted])
            assert (self.daemon.status, self.daemon.limit_mib) == (MpsStatus.READY, self.wanted)

    @invariant()
    def what_is_called_stopped_is_stopped(self) -> None:
        if self.daemon.why:
            assert self.daemon.status in {MpsStatus.FAILED, MpsStatus.FAULT}


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_in_any_order = Machine.TestCase


# --- Directories ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["GPU-6f1c2f4e-0d2b-4f0c-9a57-0a2f0b0c1d2e", "GPU-fake-0"])
def test_a_uuid_is_one(text: str) -> None:
    assert is_uuid(text)


@pytest.mark.parametrize("text", ["", "GPU-", "GPU-../a", "GPU-a b", "GPU-é", "MIG-6f1c", "GPU-" + "a" * 65, "GPU--"])
def test_a_text_that_is_no_uuid_names_no_directory(text: str) -> None:
    assert not is_uuid(text)


def test_a_name_is_short_until_another_gpu_has_it() -> None:
    uuid = "GPU-6f1c2f4e-0d2b"
    assert short_name(uuid, ()) == "6f1c2f4e"
    assert short_name(uuid, {"6f1c2f4e"}) == "6f1c2f4e-"
    assert short_name("GPU-a", ()) == "a"


@given(st.lists(st.text("ab-", min_size=1, max_size=12).map("GPU-".__add__), unique=True, max_size=12))
def test_two_gpus_never_share_a_directory(uuids: list[str]) -> None:
    taken: set[str] = set()
    for uuid in uuids:
        taken.add(short_name(uuid, taken))
    assert len(taken) == len(uuids)
