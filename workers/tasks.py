"""What a node does to tasks: claim one for a runner, give one back, end one."""

from __future__ import annotations

from domain import events as e
from domain import streams
from domain.actions import ClaimTask, EndAttempt, EndTask
from domain.completion import failure
from workers.frames import Assignment, insert_of
from workers.pool import RunnerPool
from workers.recorder import Recorder


async def claim(action: ClaimTask, pool: RunnerPool, recorder: Recorder) -> None:
    """Claim a task and put it into a runner's batch.

    Raises:
        GuardFailed: another claim was first.
    """
    runner = pool.get(action.runner_id)
    if runner is None:  # it died since it was planned with
        return
    stream = streams.completion(action.task_id)
    acknowledged = e.TaskAcknowledged(
        task_id=action.task_id,
        attempt=action.attempt,
        node_id=pool.node_id,
        epoch=pool.epoch,
        instance_id=action.instance_id,
        runner_id=action.runner_id,
    )
    await recorder.append(stream, acknowledged, attempt=action.attempt - 1)
    # Read after the claim, which fences off whoever could still add to the stream.
    created = await recorder.created(stream)
    chunks = await recorder.chunks(stream) if action.attempt > 1 else []
    uid = next(pool.uids)
    assignment = Assignment(uid, action.task_id, action.attempt)
    await runner.insert(assignment, insert_of(uid, created, chunks))


async def end_attempt(action: EndAttempt, recorder: Recorder) -> None:
    """Give a task back to be claimed again.

    Raises:
        GuardFailed: it was claimed again, or has ended.
    """
    stream = streams.completion(action.task_id)
    ended = e.AttemptEnded(
        task_id=action.task_id,
        attempt=action.attempt,
        reason=action.reason,
        committed_tokens=await _tokens(stream, recorder),
        error_message=action.error_message,
    )
    await recorder.append(stream, ended, attempt=action.attempt)


async def end_task(action: EndTask, pool: RunnerPool, recorder: Recorder) -> None:
    """End a task that cannot go on.

    Raises:
        GuardFailed: it was claimed again, or has ended.
    """
    stream = streams.completion(action.task_id)
    tokens = await _tokens(stream, recorder)
    chunk, ending = failure(action.task_id, action.attempt, tokens, action.code, action.message)
    if action.code == "deadline_exceeded":
        ending = e.TaskStatusUpdated(
            task_id=action.task_id,
            attempt=action.attempt,
            status="TimedOut",
            completion_tokens=tokens,
            detail=action.message,
        )
    await recorder.append(stream, chunk, ending, attempt=action.attempt, durable=True)
    await pool.remove(action.task_id)


async def _tokens(stream: str, recorder: Recorder) -> int:
    return sum(len(chunk.token_ids) for chunk in await recorder.chunks(stream))
