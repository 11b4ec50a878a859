"""`spot/instance-action`: EC2 takes this spot instance back.

Not ``spot/termination-time``: that one is silent about stop and hibernate
(aws/amazon-ecs-agent#2199). Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide, "Spot Instance
interruption notices": the key is present only while the instance is marked for an interruption;
two minutes before a stop or terminate, best effort; a hibernation is announced when it begins.
"""

from evacd.facts import Confidence
from evacd.notice.aws.reading import Found, Reading, Unreadable, joined, parsed, rfc3339, shown

NAME = "aws/spot"
KEY = "spot/instance-action"
NOTICE_SECONDS = 120.0
_KNOWN = ("terminate", "stop", "hibernate")


def read_action(text: str, *, boot: str = "") -> Reading | Unreadable:
    """What ``spot/instance-action`` says.

    An action that is known starts an order whatever its time looks like, at once where that is
    unreadable. One that is not known does so only with a readable time: EC2 writes the key for
    nothing but an interruption, so the two together are a reclaim by a new word. Without one
    it only advises.
    """
    value = parsed(text)
    if isinstance(value, Unreadable):
        return value
    action = value.get("action") if isinstance(value, dict) else None
    if not isinstance(action, str) or not action.strip():
        return Unreadable(f"no action in {shown(text)}")
    word, date, id = action.strip().lower(), rfc3339(value.get("time")), joined(NAME, boot)
    if word == "hibernate":
        found = Found(id, word, Confidence.CERTAIN, None, 0.0, "EC2 hibernates it now")
    elif word not in _KNOWN:
        confidence = Confidence.ADVISORY if date is None else Confidence.CERTAIN
        most = None if date is None else NOTICE_SECONDS
        found = Found(id, "unknown", confidence, date, most, f"EC2 announces {shown(action)}")
    elif date is None:
        detail = f"EC2 will {word} it, at a time that cannot be read"
        found = Found(id, word, Confidence.CERTAIN, None, 0.0, detail)
    else:
        found = Found(id, word, Confidence.CERTAIN, date, NOTICE_SECONDS, f"EC2 will {word} it")
    return Reading((found,))
