"""The metrics in Prometheus's text format."""

from trueloop.app.serving.metrics import Histogram, Metrics


def test_buckets_are_cumulative():
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 2.0, 9.0):
        histogram.add(value)
    assert histogram.lines("x") == [
        'x_bucket{le="1"} 2',
        'x_bucket{le="2.5"} 3',
        'x_bucket{le="+Inf"} 4',
        "x_sum 12.5",
        "x_count 4",
    ]


def test_unknown_paths_are_counted_together_and_labels_are_escaped():
    metrics = Metrics({"name": 'a"b\\c\nd'}, {"now": lambda: 3.0})
    for path in ("/predict", "/predict", "/made-up", "/made-up-too"):
        metrics.count_request(path, 200, 0.01)
    lines = metrics.text().splitlines()
    assert 'trueloop_model_info{name="a\\"b\\\\c\\nd"} 1' in lines
    assert 'trueloop_requests_total{path="/predict",status="200"} 2' in lines
    assert 'trueloop_requests_total{path="other",status="200"} 2' in lines
    assert "now 3" in lines
    assert "trueloop_request_seconds_count 2" in lines, "of predictions"
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named))
