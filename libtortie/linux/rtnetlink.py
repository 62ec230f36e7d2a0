"""Numbers of linux/rtnetlink.h that a pod's ADD and DEL need.

They are pyroute2's, too, whose import takes 0.1 s: that is a third of an ADD without the agent.
A test holds both equal.
"""

from __future__ import annotations

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNSID, RTM_GETNSID = 88, 90
