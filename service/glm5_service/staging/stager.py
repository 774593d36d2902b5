"""The order of the steps (list, plan, assemble, fetch, publish), and what happens when the source changes meanwhile.

Each step is a module of its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from glm5_service.contracts.manifest import Manifest
from glm5_service.errors import SettingsError
from glm5_service.settings.staging import StagingSettings
from glm5_service.settings.tree import ModelSettings
from glm5_service.staging.assemble import assemble
from glm5_service.staging.clock import Clock
from glm5_service.staging.plan import Plan, make_plan
from glm5_service.staging.progress import Progress, size_text
from glm5_service.staging.reasons import Reason, SourceChanged, StagingError, Transient
from glm5_service.staging.report import show_plan, show_result
from glm5_service.staging.sources import open_source
from glm5_service.staging.sources.listing import Offer, make_offer
from glm5_service.staging.store.amend import condemn, relabel
from glm5_service.staging.store.build import Build
from glm5_service.staging.store.lease import Owner
from glm5_service.staging.store.lock import TargetLock
from glm5_service.staging.store.manifest import read_manifest
from glm5_service.staging.store.prune import prune, sweep
from glm5_service.staging.store.publish import publish, switch
from glm5_service.staging.store.volume import Volume
from glm5_service.staging.transfer.fetch import Fetch, Place
from glm5_service.staging.transfer.partial import drop_foreign
from glm5_service.staging.transfer.patience import Patience
from glm5_service.staging.verify import Damage, audit
from glm5_service.staging.warm import resident_bytes, warm

CHANGES_ALLOWED = 3
# how often is looked for what another stager publishes
WAIT_SECONDS = 5.0


@dataclass(frozen=True)
class Options:
    """What is asked of one run."""

    wait: bool = False
    dry_run: bool = False
    verify: bool = False
    warm: bool = False


PLAIN = Options()
SERVED = ModelSettings()


class Stager:
    """One run."""

    def __init__(
        self,
        settings: StagingSettings,
        progress: Progress,
        clock: Clock,
        stop: threading.Event,
        served: ModelSettings = SERVED,
    ) -> None:
        if settings.source is None:
            raise SettingsError("staging.source", "not set", expected="the address of a model")
        self._served = served
        self._settings, self._progress, self._clock, self._stop = settings, progress, clock, stop
        self._volume = Volume.at(settings.target)
        self._patience = Patience(settings, clock, stop)
        self._source_label = progress.source = open_source(settings.source, settings).label
        self._damage = Damage()

    def stage(self, options: Options) -> None:
        self._volume.check()
        if options.wait:
            self._wait()
            return
        if not (self._is_sound(options.verify) and not self._settings.refresh):
            if options.dry_run and self._damage.names:
                names = ", ".join(sorted(self._damage.names))
                raise StagingError(
                    Reason.CORRUPT, "damaged on the volume", names, expected="the digests of the manifest"
                )
            offer = self._list()
            if options.dry_run:
                self._show(self._plan(offer))
                return
            self._change(offer)
        if options.warm and not options.dry_run:
            self._warm()

    def _wait(self) -> None:
        """Until the model asked for, and no other, is published; contacts no source and writes nothing to the volume."""
        while not self._is_sound(verify=False):
            if self._progress.phase != "waiting":
                self._progress.say(f"waiting for another stager to publish {self._source_label}")
                self._progress.enter("waiting")
            self._progress.tick()
            self._clock.pause(self._stop, WAIT_SECONDS)

    def _is_sound(self, verify: bool) -> bool:
        """True if the published model is the one asked for and its files are the ones that were verified."""
        folder = self._volume.current_revision()
        manifest = read_manifest(folder) if folder is not None else None
        if folder is None or manifest is None or not (verify or self._is_ours(manifest)):
            return False
        self._progress.revision = manifest.revision
        self._progress.total_bytes = manifest.total_bytes
        if verify:
            # under whatever name it was published, and may be published again
            self._progress.enter("verifying")
            self._damage = audit(folder, manifest, self._progress, self._stop)
            if self._damage.names or not self._is_ours(manifest):
                return False
        elif manifest.touched(folder):
            return False
        self._progress.present_bytes = manifest.total_bytes
        self._progress.say(f"{folder} is {'verified' if verify else 'published and untouched'}")
        return True

    def _is_ours(self, manifest: Manifest) -> bool:
        settings = self._settings
        asked = (self._source_label, settings.tokenizer_source, settings.quantisation)
        return (manifest.source, manifest.tokenizer_source, manifest.quantisation) == asked

    def _list(self) -> Offer:
        self._progress.enter("listing")
        return self._patience.persist("listing the source", self._offer)

    def _offer(self) -> Offer:
        try:
            return make_offer(self._settings)
        except SourceChanged as change:
            # between two questions of one listing
            raise Transient(Reason.CHANGED, str(change)) from change

    def _plan(self, offer: Offer) -> Plan:
        local = frozenset(name for name, source in offer.sources.items() if not source.remote)
        plan = make_plan(offer.listing, self._volume, local=local)
        progress = self._progress
        progress.revision, progress.total_bytes = plan.revision, plan.listing.total_bytes
        progress.present_bytes = plan.listing.total_bytes - plan.missing_bytes
        return plan

    def _show(self, plan: Plan) -> None:
        show_plan(plan, self._settings.rate_limit, self._progress)
        plan.check_room(self._settings.headroom_bytes)

    def _change(self, offer: Offer) -> None:
        """Everything that writes to the volume, under the lock."""
        self._volume.prepare()
        settings = self._settings
        lock = TargetLock(self._volume.locks, self._clock, settings.lock_lease_seconds, self._stop)
        lock.acquire(settings.lock_wait_seconds, self._waiting)
        with lock:
            if self._damage.inodes:
                # before anything is planned: the same bytes may go by other names
                condemn(self._volume, self._damage.inodes, lock)
            changes = 0
            while True:
                try:
                    self._bring(offer, lock)
                    break
                except SourceChanged as change:
                    changes += 1
                    if changes > CHANGES_ALLOWED:
                        raise StagingError(Reason.CHANGED, "source keeps changing", str(change)) from change
                    self._progress.say(f"source changed, that file starts again: {change}")
                    self._progress.lost(0)
                    offer = self._list()
            say = self._progress.say
            if not settings.aside:
                prune(self._volume, settings.keep, lock, self._clock, self._stop, say)
            sweep(self._volume, lock, say)

    def _bring(self, offer: Offer, lock: TargetLock) -> None:
        settings, progress, volume = self._settings, self._progress, self._volume
        progress.enter("planning")
        lock.check()
        drop_foreign(volume.partials, offer.listing.files, progress.say)
        plan = self._plan(offer)
        if plan.intact is not None:
            relabel(settings, offer.listing, plan.intact, lock)
            self._make_current(plan.intact, lock)
            progress.say(f"{plan.intact} is published")
            return
        self._show(plan)
        build = Build(volume, plan.revision, lock.owner.nonce)
        build.prepare()
        progress.enter("verifying")
        files = assemble(plan, build, progress, self._stop)
        # what follows removes files that would be a successor's
        lock.check()
        build.drop_others()
        progress.enter("fetching")
        place = Place(volume, build, lock)
        Fetch(settings, offer.sources, files, place, progress, self._clock).run(self._stop)
        progress.enter("publishing")
        folder, manifest = publish(settings, self._served, offer.listing, volume, build, lock)
        self._make_current(folder, lock)
        show_result(manifest, folder, progress)

    def _make_current(self, revision: Path, lock: TargetLock) -> None:
        if self._settings.aside:
            self._progress.say(f"{revision.name} lies ready; the next run for it makes it current")
        elif revision != self._volume.current_revision():
            switch(self._volume, revision, lock)

    def _waiting(self, owner: Owner | None) -> None:
        holder = f"{owner.host}, pid {owner.pid}" if owner else "an unreadable lock"
        if self._progress.phase != "waiting":
            self._progress.say(f"another stager works on {self._volume.target}: {holder}; waiting")
            self._progress.enter("waiting")
        self._progress.tick()

    def _warm(self) -> None:
        folder = self._volume.current_revision()
        manifest = read_manifest(folder) if folder is not None else None
        if folder is None or manifest is None:
            raise StagingError(Reason.NOT_FOUND, "no published model", self._volume.current)
        self._progress.enter("warming")
        paths = [folder / record.name for record in manifest.files]
        warm(paths, self._settings.warm_limit_bytes, self._progress, self._stop)
        resident = sum(resident_bytes(path) for path in paths if path.stat().st_size)
        self._progress.say(
            f"page cache holds {size_text(resident)} of {size_text(manifest.total_bytes)} "
            f"({resident / manifest.total_bytes:.1%})"
        )
