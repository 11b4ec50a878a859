"""`events/recommendations/rebalance`: an interruption has become likely.

Far more frequent than interruptions (kubernetes/kops#14761), so it only advises. Its
``noticeTime`` is when it was sent, not when anything happens. Source:
docs.aws.amazon.com/AWSEC2/latest/UserGuide, "EC2 instance rebalance recommendations".
"""

from evacd.facts import Confidence
from evacd.notice.aws.reading import Found, Reading, Unreadable, joined, parsed, rfc3339, shown

NAME = "aws/rebalance"
KEY = "events/recommendations/rebalance"


def read_rebalance(text: str, *, boot: str = "") -> Reading | Unreadable:
    """What ``events/recommendations/rebalance`` says."""
    value = parsed(text)
    if isinstance(value, Unreadable):
        return value
    if not isinstance(value, dict) or rfc3339(value.get("noticeTime")) is None:
        return Unreadable(f"no noticeTime in {shown(text)}")
    detail = "EC2 recommends to rebalance: an interruption has become likely"
    id = joined(NAME, boot)
    return Reading((Found(id, "rebalance", Confidence.ADVISORY, None, None, detail),))
