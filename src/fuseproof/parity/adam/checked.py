"""Any Adam, step by step beside an oracle in FP64: what it computes, what it counts and what it leaves alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.oracle import AdamHyper
from fuseproof.parity import ParityError, again, assert_rounded
from fuseproof.parity.adam.bounds import BUDGETS, Tracked, advance, bias
from fuseproof.parity.adam.nature import nature_of
from fuseproof.parity.adam.state import AdamState, Snapshot
from fuseproof.parity.bits import Contents, changes, is_zero, same_numbers
from fuseproof.parity.factors import factor_of
from fuseproof.parity.worst import forgive, note, share

__all__ = ["CheckedAdam", "Group"]

# Elements. The oracle's hundreds of small FP64 operations would each wait for a GPU that other workers use too.
_JUDGED_ON_THE_HOST = 2**20


@dataclass(frozen=True)
class Group:
    """Parameters of one group and our own record of its settings."""

    params: list[torch.Tensor]
    settings: AdamSettings

    def entry(self, defaults: AdamSettings) -> dict[str, object]:
        """Return the group as optimizers take it, with what differs from their defaults."""
        settings = {name: getattr(self.settings, name) for name in ("lr", "betas", "eps", "weight_decay")}
        own = {name: value for name, value in settings.items() if value != getattr(defaults, name)}
        return {"params": self.params, **own}


class CheckedAdam:
    """An optimizer whose every step is checked; `finish` compares the whole way.

    Step-local: before each step the oracle takes the candidate's own parameters and moments. Trajectory: the oracle
    goes its own way from the first parameters and our gradients. The step count is ours in both. Where exp_avg and
    exp_avg_sq are not in the state under these names, only the trajectory is compared.

    Attributes:
        params: all parameters, in the order of the groups.
        steps: how many steps each has taken.

    Args:
        candidate: which Adam.
        groups: parameter groups; all have the first one's kind of weight decay.
        case: what is run, for messages.
        bystanders: other tensors that no step may write, by name.

    """

    def __init__(
        self,
        candidate: AdamCandidate,
        groups: Sequence[Group],
        case: str,
        bystanders: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.candidate = candidate
        self.groups = list(groups)
        self.params = [param for group in groups for param in group.params]
        self.case = f"{candidate.name}, {case}"
        self._bystanders = dict(bystanders or {})
        self._defaults = self.groups[0].settings
        params: list[object] = [group.entry(self._defaults) for group in groups] if len(groups) > 1 else [*self.params]
        self.optimizer = candidate.build(params, self._defaults)  # type: ignore[arg-type]
        large = sum(param.numel() for param in self.params) > _JUDGED_ON_THE_HOST
        judge = self.params[0].device if large else torch.device("cpu")
        self._state = AdamState(candidate, self.optimizer, judge)
        self.steps: dict[torch.Tensor, int] = defaultdict(int)
        self._tracks: dict[torch.dtype, dict[int, Tracked]] = defaultdict(dict)
        self._starts: dict[int, torch.Tensor] = {}
        self._after: Contents = {}
        self._note_starts()

    def _note_starts(self) -> None:
        now = self._state.snapshot(self.params, {})
        self._starts |= {i: now.weight(i) for i in range(len(self.params)) if i not in self._starts}

    def add_group(self, group: Group) -> None:
        """Add a parameter group to the running optimizer."""
        self.groups.append(group)
        self.params += group.params
        self.optimizer.add_param_group(group.entry(self._defaults))
        self._note_starts()

    def change_settings(self, **settings: Any) -> None:
        """Note that from now on every group has these settings; the caller has told the optimizer."""
        self.groups = [replace(group, settings=replace(group.settings, **settings)) for group in self.groups]

    def skip_ahead(self, steps: int) -> None:
        """Take steps that nobody checks, all with the gradients that are there: `finish` can say nothing after them."""
        for _ in range(steps):
            self.optimizer.step()
        for param in self.params:
            self.steps[param] += steps if param.grad is not None else 0
        self._after = {}

    def write_params(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Write every parameter between two steps; `change` takes no two values farther apart than they were."""
        with torch.no_grad():
            for param in self.params:
                param.copy_(change(param))
        for track in self._tracks.values():
            track.update({i: replace(each, param=change(each.param)) for i, each in track.items()})
        self._after = {}

    def clear_state(self) -> None:
        """Clear the optimizer's state between two steps: all begins again from where the parameters are."""
        self.optimizer.state.clear()
        self.steps.clear()
        self._tracks.clear()
        self._starts = {}
        self._after = {}
        self._note_starts()

    def step(self, scale: float = 1.0, skipped: bool = False, by: Callable[[], object] | None = None) -> None:
        """Take one step and check all that can be said of it.

        Args:
            scale: the gradients are this many times too large; `by` knows how to unscale them.
            skipped: nothing may move: an overflow.
            by: what takes the step instead of ``optimizer.step``.

        Raises:
            ParityError: anything is wrong.

        """
        params = self.params
        live = [i for i, param in enumerate(params) if param.grad is not None and not skipped]
        before = self._state.snapshot(params, self._bystanders)
        moved = changes(self._after, before.values)
        self._assert(not moved, f"changed between two steps: {', '.join(moved)}")
        for i in live:
            zero = self.steps[params[i]] > 0 or all(is_zero(each) for each in before.moments(i) or ())
            self._assert(zero, f"{self._name(i)}: its moments are not zero before its first step")
        (by or self.optimizer.step)()
        for i in live:
            self.steps[params[i]] += 1
        after = self._state.snapshot(params, self._bystanders)
        self._assert_kept(before.values, after.values, live, scale)
        for i in live:
            self._assert_counted(after, i)
        first = 0
        for group in self.groups:
            mine = [i for i in live if first <= i < first + len(group.params)]
            self._judge(mine, group.settings, before, after, scale)
            first += len(group.params)
        self._after = {name: value for name, value in after.values.items() if name.startswith(("parameter", "master"))}

    def finish(self) -> None:
        """Compare where the parameters are with where the oracle went, nothing of the candidate's in its state.

        Raises:
            ParityError: a parameter is elsewhere.

        """
        failure: ParityError | None = None
        now = self._state.snapshot(self.params, {})
        for track in self._tracks.values():
            try:
                for i, wanted in track.items():
                    case = f"{self.case}, after step {self.steps[self.params[i]]} by its whole way{again()}"
                    name = f"trajectory of {self._name(i)}"
                    stored = now.weight(i).flatten()
                    assert_rounded(name, stored, wanted.param, wanted.param_error, BUDGETS["param"], case)
            except ParityError as error:
                failure = failure or error
            else:
                forgive("trajectory")
                return
        if failure is not None:
            raise failure

    def _judge(self, live: list[int], settings: AdamSettings, before: Snapshot, after: Snapshot, scale: float) -> None:
        """Compare the step of a group, all parameters that are of one kind at once."""
        alike: dict[tuple[int, torch.dtype, torch.dtype, torch.dtype | None], list[int]] = defaultdict(list)
        params = self.params
        for i in live:
            now = after.moments(i)
            kept = None if now is None else now[0].dtype
            alike[self.steps[params[i]], params[i].dtype, after.weight(i).dtype, kept].append(i)
        for (step, dtype, weight_dtype, kept), same in alike.items():
            arithmetic = self.candidate.arithmetic(params[same[0]].device)
            hyper = self.candidate.hyper(settings, params[same[0]].device)
            grad = torch.cat([before.grad(i).double().flatten() for i in same]) / scale
            sizes = [params[i].numel() for i in same]
            # From the candidate's state and on the oracle's own ways at once: operations cost more than elements.
            ways = [kept] if kept is not None else list({torch.float32, dtype})
            begun = [self._begun(before, i) for i in same] if kept is not None else []
            begun += [self._tracked(way, i) for way in ways for i in same]
            times = len(begun) // len(same)
            old = Tracked.cat(begun)
            moved = advance(old, grad.repeat(times), step, hyper, arithmetic.power_ulps, weight_dtype)
            olds, ends = (each.split([sum(sizes)] * times) for each in (old, moved))
            if kept is not None:
                self._judge_locally(same, grad, step, hyper, olds[0], ends[0], after)
            for way, end in zip(ways, ends[-len(ways) :], strict=True):
                stored = end.stored(weight_dtype, way).split(sizes)
                self._tracks[way].update(zip(same, stored, strict=True))

    def _begun(self, before: Snapshot, position: int) -> Tracked:
        """Return what the candidate has of a parameter before a step."""
        zeros = torch.zeros_like(before.weight(position))
        return Tracked.exact(before.weight(position), *(before.moments(position) or (zeros, zeros)))

    def _tracked(self, way: torch.dtype, position: int) -> Tracked:
        """Return where the oracle is with a parameter whose moments it keeps in a dtype."""
        zeros = torch.zeros_like(self._starts[position], dtype=torch.float64)
        return self._tracks[way].get(position) or Tracked.exact(self._starts[position], zeros, zeros)

    def _judge_locally(
        self,
        same: list[int],
        grad: torch.Tensor,
        step: int,
        hyper: AdamHyper,
        old: Tracked,
        wanted: Tracked,
        after: Snapshot,
    ) -> None:
        power_ulps = self.candidate.arithmetic(self.params[same[0]].device).power_ulps
        new = torch.cat([after.weight(i).flatten() for i in same])
        news = [now for i in same if (now := after.moments(i))]
        case = f"{self.case}, step {step}{again()}"

        def locate(position: int) -> str:
            for i in same:
                if position < self.params[i].numel():
                    return f"element {position} of {self._name(i)}"
                position -= self.params[i].numel()
            return "nowhere"

        try:
            for quantity, actual in (
                ("exp_avg", torch.cat([each[0].flatten() for each in news])),
                ("exp_avg_sq", torch.cat([each[1].flatten() for each in news])),
                ("param", new),
            ):
                expected, tolerance = getattr(wanted, quantity), getattr(wanted, f"{quantity}_error")
                words = partial(factor_of, quantity, actual.double(), expected)
                assert_rounded(quantity, actual, expected, tolerance, BUDGETS[quantity], case, locate)
            factor, allowed = bias(new, wanted, old.param, hyper, step, power_ulps)
            if new.dtype == torch.float32:
                note("bias", share(abs(factor), allowed), held=abs(factor) <= allowed)
                if abs(factor) > allowed:
                    raise ParityError(
                        f"bias: updates are {factor:.3g} times themselves too large on average, "
                        f"{abs(factor) / allowed:.3g} x budget {allowed:.3g} "
                        f"(budget: scalars in FP32, 6 sd of the roundings) ({case})"
                    )
        except ParityError as error:
            nature = nature_of(new, old, grad, step, hyper, power_ulps) or words()
            raise ParityError(f"{error}{nature and '; '}{nature}") from None
        for i in same if new.dtype != self.params[same[0]].dtype else ():
            rounded = after.weight(i).to(after.param(i).dtype)
            self._assert(same_numbers(after.param(i), rounded), f"{self._name(i)} is not its master, rounded")

    def _assert_kept(
        self,
        before: Contents,
        after: Contents,
        live: list[int],
        scale: float,
    ) -> None:
        """Nothing but parameters, moments, masters and counters of what has a gradient may have changed."""
        free = {f"{kind} {i}" for i in live for kind in ("parameter", "master")}
        # A scaler unscales in place for an optimizer that does not do it itself.
        scales_itself = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        may_unscale = scale != 1.0 and ("grad" in self.candidate.writes or not scales_itself)
        written = []
        for name in changes(before, after):
            owner, _, item = name.partition(", ")
            if owner in free or (owner.startswith("group") and item == "step"):
                continue
            divisors = {scale} if may_unscale else set()
            # A kernel that writes gradients back multiplies them by 1, which gives a NaN other bits.
            divisors |= {1.0} if "grad" in self.candidate.writes else set()
            if owner.startswith("gradient") and any(same_numbers(after[name], before[name] / by) for by in divisors):
                continue
            written.append(name)
        for name in after.keys() - before.keys():  # state may be made for all at once, as long as it is nothing yet
            if name.partition(", ")[0] not in free and not name.endswith("step") and not is_zero(after[name]):
                written.append(name)
        self._assert(not written, f"the step wrote what is not its own: {', '.join(sorted(written))}")

    def _assert_counted(self, after: Snapshot, i: int) -> None:
        count, ours = after.count(i), self.steps[self.params[i]]
        self._assert(count in (None, ours), f"{self._name(i)}: its counter says step {count}, ours {ours}")
        if (now := after.moments(i)) and self.candidate.moments == "float32":
            kept = {each.dtype for each in now}
            self._assert(kept == {torch.float32}, f"{self._name(i)}: moments are kept in {kept}, not in float32")

    def _assert(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise ParityError(f"{sentence} ({self.case}, steps so far {max(self.steps.values(), default=0)}{again()})")

    def _name(self, i: int) -> str:
        return f"parameter {i} {tuple(self.params[i].shape)}"
