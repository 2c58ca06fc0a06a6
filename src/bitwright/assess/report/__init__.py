"""The report: one HTML file that says how good a quantized model is, and what would mend it."""

from __future__ import annotations

from bitwright.assess.report.advice import Advice, advise
from bitwright.assess.report.data import build_report_data
from bitwright.assess.report.histograms import Histogram
from bitwright.assess.report.page import render_page
from bitwright.assess.report.subject import (
    Latency,
    MeasuredNode,
    ReportNode,
    ReportSubject,
)
from bitwright.assess.report.tensors import TensorView, channel_peaks
from bitwright.assess.report.verdict import Verdict, judge

__all__ = [
    "Advice",
    "Histogram",
    "Latency",
    "MeasuredNode",
    "ReportNode",
    "ReportSubject",
    "TensorView",
    "Verdict",
    "advise",
    "build_report_data",
    "channel_peaks",
    "judge",
    "render_page",
]
