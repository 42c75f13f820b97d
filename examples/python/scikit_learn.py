"""A scikit-learn estimator as a model: four measures of an iris to its species.

pip install ./containers/python scikit-learn
python examples/python/scikit_learn.py
"""

from typing import Any

from shiva_container import Tensor, model, serve
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

iris = load_iris()
classifier = make_pipeline(StandardScaler(), LogisticRegression()).fit(iris.data, iris.target)


@model(
    name="iris",
    version="1",
    platform="scikit-learn",
    inputs=[Tensor("measures", "FP64", [-1, 4])],
    outputs=[Tensor("probabilities", "FP64", [-1, 3]), Tensor("species", "BYTES", [-1])],
)
def species(measures: Any) -> Any:
    probabilities = classifier.predict_proba(measures)
    return probabilities, iris.target_names[probabilities.argmax(axis=1)].astype(object)


if __name__ == "__main__":
    serve()
