"""Writes a classifier of irises to the path that is given."""

import sys

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

iris = load_iris()
joblib.dump(LogisticRegression(max_iter=500).fit(iris.data, iris.target_names[iris.target]), sys.argv[1])
