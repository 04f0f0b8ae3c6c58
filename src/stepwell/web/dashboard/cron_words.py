"""Cron expressions in plain words, for the expressions that people use most; any other stands as it is."""

from __future__ import annotations

import re

__all__ = ["cron_words"]

_NICKNAMES = {
    "@hourly": "every hour, at minute 0",
    "@daily": "every day at 00:00",
    "@midnight": "every day at 00:00",
    "@weekly": "every Sunday at 00:00",
    "@monthly": "on day 1 of every month at 00:00",
    "@yearly": "on 1 January at 00:00",
    "@annually": "on 1 January at 00:00",
}
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SHORT = {name[:3].upper(): number for number, name in enumerate(_DAYS[:7])}
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def cron_words(expression: str) -> str:
    """Return a cron expression in plain words; the expression itself where no plain words are known for it."""
    if expression in _NICKNAMES:
        return _NICKNAMES[expression]
    fields = expression.split()
    if len(fields) != 5:
        return expression
    minute, hour, day, month, weekday = fields
    days = _day_words(day, month, weekday)
    times = _time_words(minute, hour)
    if days is None or times is None:
        return expression
    return f"{days} {times}".strip() if days else times


def _time_words(minute: str, hour: str) -> str | None:
    if hour == "*":
        if minute == "*":
            return "every minute"
        if found := re.fullmatch(r"\*/(\d+)", minute):
            return f"every {found[1]} minutes"
        return f"every hour, at minute {minute}" if minute.isdecimal() else None
    if found := re.fullmatch(r"\*/(\d+)", hour):
        return f"every {found[1]} hours, at minute {minute}" if minute.isdecimal() else None
    if minute.isdecimal() and re.fullmatch(r"\d+(,\d+)*", hour):
        return "at " + _listed([f"{int(each):02}:{int(minute):02}" for each in hour.split(",")])
    return None


def _day_words(day: str, month: str, weekday: str) -> str | None:
    if (day, month, weekday) == ("*", "*", "*"):
        return "every day"
    if day == "*" and month == "*":
        return _weekday_words(weekday)
    if weekday == "*" and day.isdecimal():
        if month == "*":
            return f"on day {day} of every month"
        if month.isdecimal() and 1 <= int(month) <= 12:
            return f"on {day} {_MONTHS[int(month) - 1]}"
    return None


def _weekday_words(weekday: str) -> str | None:
    if weekday in ("1-5", "MON-FRI"):
        return "Monday to Friday"
    names: list[str] = []
    for each in weekday.upper().split(","):
        number = int(each) if each.isdecimal() else _SHORT.get(each, -1)
        if not 0 <= number <= 7:
            return None
        names.append(_DAYS[number])
    return f"every {_listed(names)}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
