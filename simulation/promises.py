"""The plainest promises, checked by sampling: equal states at equal offsets, LAO, and acknowledged writes that stay."""

from __future__ import annotations

from typing import Any

from simulation.checks.api import BrokerView, Checker, CheckFailedError, ControllerView, Operation


class StateAgreement(Checker):
    """Two nodes whose images are at the same offset have the same state."""

    def sample(self) -> None:
        """Compare all images."""
        hashes: dict[int, tuple[str, int]] = {}
        for host in (*self.world.controllers, *self.world.brokers):
            if host.service is None:
                continue
            image = host.service.image
            other, known = hashes.setdefault(image.offset, (host.name, image.state_hash))
            if known != image.state_hash:
                raise CheckFailedError(f"{host.name} and {other} have different states at offset {image.offset}")


class AcknowledgedStays(Checker):
    """What was acknowledged is there at the end, unless it was overwritten by what may have come later."""

    def __init__(self) -> None:
        self._possible: dict[str, list[Operation]] = {}

    def client_invoked(self, operation: Operation) -> None:
        """It may be what is there at the end."""
        if operation.kind == "write_config":
            self._possible.setdefault(operation.key, []).append(operation)

    def client_returned(self, operation: Operation) -> None:
        """An acknowledged write rules out all acknowledged ones before it; a failed one is ruled out itself."""
        if operation.kind != "write_config":
            return
        possible = self._possible[operation.key]
        if operation.outcome == "failed":
            possible.remove(operation)
        elif operation.outcome == "ok":
            self._possible[operation.key] = [
                other for other in possible if other.outcome != "ok" or other.offset >= operation.offset
            ]

    def end(self) -> None:
        """Look at the newest image."""
        image = self._newest()
        for key in sorted(self._possible):
            possible = self._possible[key]
            found = image.configs.get((16, key), {}).get("match")
            must = any(operation.outcome == "ok" for operation in possible)
            if found not in [operation.value for operation in possible] and (must or found is not None):
                values = [f"{operation.value[:24]} ({operation.outcome})" for operation in possible]
                raise CheckFailedError(f"{key} can only be one of {values}, but is {str(found)[:24]!r}")

    def _newest(self) -> Any:
        images = [host.service.image for host in self.world.controllers if host.service is not None]
        return max(images, key=lambda image: image.offset)


class ToldNeverFalls(Checker):
    """The LAO that a broker's process was told never falls, and no LAO is above the high watermark it comes with."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], int] = {}

    def broker_moved(self, host: BrokerView) -> None:
        """Compare with what it was."""
        assert host.service is not None
        told = host.service._view.told
        key = (host.name, host.incarnation)
        if told < self._told.get(key, -1):
            raise CheckFailedError(f"LAO went back on {host.name}: {self._told[key]} to {told}")
        self._told[key] = told

    def lao_announced(self, host: ControllerView, controller_epoch: int, lao: int) -> None:
        """It is committed."""
        assert host.service is not None
        if lao >= host.service.committed_end:
            end = host.service.committed_end
            raise CheckFailedError(f"LAO {lao} of {host.name} is not below its high watermark {end}")


class LaoIsApplied(Checker):
    """No unfenced broker is behind the LAO that a controller announces."""

    def lao_announced(self, host: ControllerView, controller_epoch: int, lao: int) -> None:
        """Compare with every broker that is unfenced in the committed image."""
        assert host.service is not None
        for broker in self.world.brokers:
            registered = host.service.image.brokers.get(broker.id)
            if broker.service is None or registered is None or registered.fenced:
                continue
            if broker.service._lifecycle.epoch == registered.epoch and broker.service.image.offset < lao:
                raise CheckFailedError(
                    f"LAO {lao} of {host.name} is above what {broker.name} has applied: {broker.service.image.offset}"
                )


def standard_checkers() -> list[Checker]:
    """A new set of all of them, for one run."""
    return [StateAgreement(), AcknowledgedStays(), ToldNeverFalls(), LaoIsApplied()]
