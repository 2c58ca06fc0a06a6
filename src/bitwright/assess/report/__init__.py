"""The report: one HTML file that says how good a quantized model is, and what to do about it."""

from __future__ import annotations

from bitwright.assess.report.advice import Advice, advise
from bitwright.assess.report.data import build_report_data
from bitwright.assess.report.encodings import Encoding, planned_weights, read_encodings
from bitwright.assess.report.histograms import Histogram
from bitwright.assess.report.page import render_page
from bitwright.assess.report.subject import (
    Latency,
    ReportNode,
    ReportSubject,
    SuggestedFix,
)
from bitwright.assess.report.verdict import Verdict, judge
from bitwright.assess.report.views import TensorView, Views, channel_peaks

__all__ = [
    "Advice",
    "Encoding",
    "Histogram",
    "Latency",
    "ReportNode",
    "ReportSubject",
    "SuggestedFix",
    "TensorView",
    "Verdict",
    "Views",
    "advise",
    "build_report_data",
    "channel_peaks",
    "judge",
    "planned_weights",
    "read_encodings",
    "render_page",
]
