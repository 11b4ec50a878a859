"""`autoscaling/target-lifecycle-state`: the Auto Scaling group ends this instance.

The key tells a target, has no time and no id; what ends the window is the group's terminating
lifecycle hook. So the id is made of what was said (aws-node-termination-handler#1100 made it
of the time, and drained for ever), and the window is configured. Absent (404) outside of a
group and early after a launch.

Source: docs.aws.amazon.com/autoscaling/ec2/userguide, "Retrieve the target lifecycle state
through instance metadata".
"""

import re

from evacd.facts import Confidence
from evacd.notice.aws.reading import NOTHING, Found, Reading, Unreadable, joined, shown

NAME = "aws/asg"
KEY = "autoscaling/target-lifecycle-state"
HOOK_SECONDS = 30.0

# The machine ends, or stops and goes back to the warm pool.
_ENDS = {"Terminated", "Warmed:Terminated", "Warmed:Stopped", "Warmed:Hibernated"}
# Detached and in standby it leaves the group's service, but runs on.
_STAYS = {"InService", "Detached", "Standby", "Warmed:Running"}
_WORD = re.compile(r"[A-Z][A-Za-z]{2,30}(?::[A-Z][A-Za-z]{2,30})?", re.ASCII)


def read_state(
    text: str, *, boot: str = "", hook_seconds: float = HOOK_SECONDS
) -> Reading | Unreadable:
    """What ``autoscaling/target-lifecycle-state`` says.

    Args:
        hook_seconds: How long the group's terminating lifecycle hook holds the instance.
    """
    state = text.strip()
    if state in _STAYS:
        return NOTHING
    if not _WORD.fullmatch(state):
        return Unreadable(f"no lifecycle state: {shown(text)}")
    kind, id = state.lower().replace(":", "-"), joined(NAME, state, boot)
    if state in _ENDS:
        detail = f"its Auto Scaling group takes it to {state}"
        return Reading((Found(id, kind, Confidence.CERTAIN, None, hook_seconds, detail),))
    detail = f"its Auto Scaling group takes it to an unknown state: {shown(state)}"
    return Reading((Found(id, "unknown", Confidence.ADVISORY, None, None, detail),))
