"""The transports: what carries a collective. Drivers are imported when asked for, so that no GPU library is loaded before."""

from synknumba.comm._base import CollectiveOp as CollectiveOp
from synknumba.comm._base import Communicator as Communicator
from synknumba.comm._base import Exchange as Exchange
