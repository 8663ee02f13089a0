"""When a device may work: only while it charges, only on Wi-Fi, only while nobody uses it; whatever its user wants.

What the system tells is read as in measurements of devices. What is not known counts as not fulfilled: a phone should
rather do nothing than empty its battery.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedarena.profiling.power import SYSTEM, read_battery
from fedarena.profiling.system_files import output_of, read_text

_ROUTES = Path("/proc/net/route")
_MOBILE = ("wwan", "rmnet", "ccmni", "ppp", "pdp", "usb")  # how interfaces of mobile networks begin
_BUSY_SHARE = 0.5  # of the processors


@dataclass(frozen=True)
class Conditions:
    """What must hold before a device takes a task."""

    charging: bool = False
    wifi: bool = False
    idle: bool = False

    def why_not(self) -> str | None:
        """Why the device does not work now; None: it does."""
        reasons = (
            not_charging() if self.charging else None,
            not_on_wifi() if self.wifi else None,
            in_use() if self.idle else None,
        )
        return next((reason for reason in reasons if reason is not None), None)


def not_charging(system: Path = SYSTEM) -> str | None:
    """Why a device does not count as charging; one without a battery always does."""
    battery = read_battery(system)
    if battery is None:
        # A phone has one, whether or not it may be asked; a computer without any is plugged in.
        return "it is not known whether it charges: install Termux:API" if _is_phone() else None
    status = (battery.status or "").lower()
    if status in ("charging", "full", "not charging"):  # the last one: plugged in, and full enough
        return None
    return "on battery" if status == "discharging" else "it is not known whether it charges"


def not_on_wifi(system: Path = SYSTEM, routes: Path = _ROUTES) -> str | None:
    """Why a device does not count as being on Wi-Fi; a cable is as good."""
    interface = default_interface(routes)
    if interface is None:
        return _not_on_wifi_of_phone() if _is_phone() else "there is no network"
    if interface.startswith(_MOBILE):
        return "not on Wi-Fi"
    known = system / "class" / "net" / interface
    is_wireless = (known / "wireless").exists() or (known / "phy80211").exists()
    is_cable = read_text(known / "type") == "1"  # Ethernet
    return None if is_wireless or is_cable or interface.startswith("wlan") else "it is not known whether it is on Wi-Fi"


def default_interface(routes: Path) -> str | None:
    """The network interface that most things are sent through, by a file like ``/proc/net/route``."""
    for line in (read_text(routes) or "").splitlines()[1:]:
        columns = line.split()
        if len(columns) > 1 and columns[1] == "00000000":
            return columns[0]
    return None


def in_use() -> str | None:
    """Why a device does not count as idle: its screen is on, or its processors have much to do."""
    if (told := output_of(["dumpsys", "power"]) if _is_phone() else None) and "mWakefulness=" in told:
        return "in use" if "mWakefulness=Awake" in told else None
    try:
        load = os.getloadavg()[0]
    except OSError:
        return "it is not known whether it is in use"
    return "busy with other things" if load > _BUSY_SHARE * (os.cpu_count() or 1) else None


def _not_on_wifi_of_phone() -> str | None:
    """Android keeps routes to itself; Termux may ask for the Wi-Fi."""
    try:
        told = json.loads(output_of(["termux-wifi-connectioninfo"]) or "")
    except ValueError:
        told = None
    if not isinstance(told, dict) or "supplicant_state" not in told:
        return "it is not known whether it is on Wi-Fi: install Termux:API"
    return None if told["supplicant_state"] == "COMPLETED" else "not on Wi-Fi"


def _is_phone() -> bool:
    return "ANDROID_ROOT" in os.environ
