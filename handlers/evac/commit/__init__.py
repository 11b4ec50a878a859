"""Commit: what makes flushed bytes count, and who may believe it.

::

    <prefix>/evac-job.json                     a generation of this job was once complete
    <prefix>/incarnation-<k>.json              a start of the job has taken number k
    <prefix>/step-<n>.<k>/weights/             all that follows, of the weights alone
    <prefix>/step-<n>.<k>/<body>               one rank's data
    <prefix>/step-<n>.<k>/.metadata-<sha256>.pending
    <prefix>/step-<n>.<k>/__<rank>.manifest.json
    <prefix>/step-<n>.<k>/.metadata            only when all of the above is there

Written in this order within a generation, so that a flush which is cut off anywhere
never looks whole. ``weights`` holds the weights' files, which the generation's own manifests and
`.metadata` name as well, and makes a plain DCP checkpoint of them: a folder of its own,
because DCP takes a folder with `.metadata` for whole.
"""

from evac.commit.checksum import chunk_sums
from evac.commit.judge import GenerationStatus, State, expendable, judge
from evac.commit.known import Known
from evac.commit.reading import foreign, jobs, newest_complete, survey, was_ever_complete
from evac.commit.retention import retain
from evac.commit.shares import Share, put_shares
from evac.commit.verifying import Problem, verify
from evac.commit.writing import (
    claim_incarnation,
    finish,
    finish_all,
    put_body,
    put_manifest,
    put_metadata,
)
from evac.commit.written import Written

__all__ = [
    "GenerationStatus",
    "Known",
    "Problem",
    "Share",
    "State",
    "Written",
    "chunk_sums",
    "claim_incarnation",
    "expendable",
    "finish",
    "finish_all",
    "foreign",
    "jobs",
    "judge",
    "newest_complete",
    "put_body",
    "put_manifest",
    "put_metadata",
    "put_shares",
    "retain",
    "survey",
    "verify",
    "was_ever_complete",
]
