"""Layers, losses, initialisers, the module tree, with PyTorch's names, arguments and state-dict layouts.

Names are loaded when first used.
"""

from __future__ import annotations

from stratal.base.names import lazy_names

_NAMES = {
    "activation": "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid "
    "LogSoftmax Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus "
    "Softshrink Softsign Tanh Tanhshrink Threshold",
    "adaptive_softmax": "AdaptiveLogSoftmaxWithLoss",
    "attention": "MultiheadAttention",
    "containers": "ModuleDict ModuleList ParameterDict ParameterList Sequential",
    "convolution": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    "distance": "CosineSimilarity PairwiseDistance",
    "dropout": "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout",
    "embedding": "Embedding EmbeddingBag",
    "lazy": "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d "
    "LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d "
    "LazyInstanceNorm3d LazyLinear UninitializedParameter",
    "linear": "Bilinear Identity Linear",
    "loss": "BCELoss BCEWithLogitsLoss CTCLoss CrossEntropyLoss GaussianNLLLoss HuberLoss KLDivLoss "
    "L1Loss MSELoss NLLLoss PoissonNLLLoss SigmoidFocalLoss SmoothL1Loss CosineEmbeddingLoss "
    "HingeEmbeddingLoss MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss "
    "SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss",
    "module": "Module",
    "normalization": "GroupNorm LayerNorm LocalResponseNorm RMSNorm",
    "padding": "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d "
    "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d "
    "ZeroPad1d ZeroPad2d ZeroPad3d",
    "parameter": "Parameter",
    "pooling": "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d "
    "AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d "
    "FractionalMaxPool3d LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d "
    "MaxUnpool2d MaxUnpool3d",
    "positions": "RotaryEmbedding SinusoidalPositions",
    "recurrent": "GRU LSTM RNN",
    "recurrent_cells": "GRUCell LSTMCell RNNCell",
    "reshaping": "ChannelShuffle Flatten Fold PixelShuffle PixelUnshuffle Unflatten Unfold Upsample "
    "UpsamplingBilinear2d UpsamplingNearest2d",
    "running_statistics": "BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d",
    "sync_batch_norm": "SyncBatchNorm",
    "transformer": "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder "
    "TransformerEncoderLayer",
}

__getattr__, __dir__ = lazy_names(__name__, _NAMES, ("functional", "init", "utils"))
