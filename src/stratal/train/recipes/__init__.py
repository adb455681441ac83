"""Training without code: a TOML file says which data, net and options; `stratal train` runs it.

    read_config(path) -> Config     checked against the table of keys of its kind
    problem_of(config) -> Problem   data, net, loss and metrics
    run(config) -> Result           fits, writes checkpoints, metrics and the model to a folder
    predict(model, path)            what such a model says of another file, prepared as that of its training
"""

from stratal.train.recipes.config import Config as Config
from stratal.train.recipes.config import example as example
from stratal.train.recipes.config import read_config as read_config
from stratal.train.recipes.keys import KINDS as KINDS
from stratal.train.recipes.prediction import Predictions as Predictions
from stratal.train.recipes.prediction import predict as predict
from stratal.train.recipes.run import Result as Result
from stratal.train.recipes.run import problem_of as problem_of
from stratal.train.recipes.run import run as run
from stratal.train.recipes.texts import numbers_of as numbers_of
