"""Networks people reach for, with the names, arguments and state dicts they are known by; each a small file.

`FAMILIES` is the table of them. Names are loaded when first used.
"""

from __future__ import annotations

from typing import NamedTuple

from stratal.base.names import lazy_names


class Family(NamedTuple):
    """Networks in one file: its place, its public names, who described them, whose state dicts they load."""

    module: str
    names: str
    paper: str
    state_dict: str


FAMILIES = (
    Family("vision.alexnet", "AlexNet alexnet",
           "Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks", "torchvision"),
    Family("vision.bn_inception", "BNInception bn_inception",
           "Ioffe and Szegedy 2015, Batch normalization", "Cadene's pretrained-models.pytorch, from Caffe"),
    Family("vision.cnn_lstm", "CNNLSTM",
           "Donahue et al. 2015, Long-term recurrent convolutional networks for visual recognition",
           "its own: convs, lstm, fc"),
    Family("vision.googlenet", "GoogLeNet GoogLeNetOutputs googlenet",
           "Szegedy et al. 2014, Going deeper with convolutions", "torchvision"),
    Family("vision.lenet", "LeNet",
           "LeCun et al. 1998, Gradient-based learning applied to document recognition",
           "PyTorch's tutorial on neural networks"),
    Family("vision.mobilenetv2", "MobileNetV2 mobilenet_v2",
           "Sandler et al. 2018, MobileNetV2: inverted residuals and linear bottlenecks", "torchvision"),
    Family("vision.resnet", "BasicBlock Bottleneck ResNet resnet18 resnet34 resnet50 resnet101 resnet152",
           "He et al. 2015, Deep residual learning for image recognition", "torchvision"),
    Family("vision.unet", "UNet",
           "Ronneberger et al. 2015, U-Net: convolutional networks for biomedical image segmentation",
           "milesial's Pytorch-UNet"),
    Family("vision.vae", "VAE vae_loss",
           "Kingma and Welling 2013, Auto-encoding variational Bayes", "PyTorch's example vae"),
    Family("vision.vgg", "VGG vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn",
           "Simonyan and Zisserman 2014, Very deep convolutional networks for large-scale image recognition",
           "torchvision"),
    Family("vision.vision_transformer", "VisionTransformer vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14",
           "Dosovitskiy et al. 2020, An image is worth 16x16 words", "torchvision"),
    Family("language.word_rnn", "RNNModel",
           "Zaremba et al. 2014, Recurrent neural network regularization",
           "PyTorch's example word_language_model"),
    Family("language.seq2seq", "AttnDecoderRNN BahdanauAttention EncoderRNN Seq2Seq",
           "Bahdanau et al. 2015, Neural machine translation by jointly learning to align and translate",
           "PyTorch's tutorial on sequence to sequence networks with attention"),
    Family("language.transformer", "Seq2SeqTransformer",
           "Vaswani et al. 2017, Attention is all you need",
           "PyTorch's tutorial on translation with nn.Transformer"),
    Family("language.gpt2", "GPT2Config GPT2LMHeadModel GPT2Model",
           "Radford et al. 2019, Language models are unsupervised multitask learners",
           "Hugging Face's transformers"),
    Family("language.llama", "LlamaConfig LlamaForCausalLM LlamaModel",
           "Touvron et al. 2023, LLaMA: open and efficient foundation language models",
           "Hugging Face's transformers"),
    Family("language.bert", "BertConfig BertForMaskedLM BertForSequenceClassification BertModel",
           "Devlin et al. 2019, BERT: pre-training of deep bidirectional transformers",
           "Hugging Face's transformers"),
    Family("graphs.convolution", "GATConv GCNConv SAGEConv",
           "Kipf and Welling 2017; Hamilton et al. 2017; Velickovic et al. 2018", "PyTorch Geometric"),
    Family("graphs.networks", "GAT GCN GraphSAGE",
           "Kipf and Welling 2017; Hamilton et al. 2017; Velickovic et al. 2018", "PyTorch Geometric"),
    Family("graphs.tree_lstm", "ChildSumTreeLSTM Levels Tree TreeLSTM levels_of",
           "Tai, Socher and Manning 2015, Improved semantic representations from tree-structured LSTMs",
           "the usual PyTorch form: ioux, iouh, fx, fh"),
)  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__, {family.module: family.names for family in FAMILIES}, ("graphs", "language", "vision")
)
