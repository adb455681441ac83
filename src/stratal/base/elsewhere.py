"""Names people look for where they are not, and where they are."""

from __future__ import annotations

import sys
from opcode import opmap
from typing import Any, Final

_INSTEAD: Final = {
    "autograd": "st.gradients(outputs, inputs) of tensors, st.grad of functions; st.custom_vjp for a "
    "derivative of your own",
    "accelerator mps xpu pin_memory": 'only the CPU is here; device="cpu" is taken, too',
    "backends": "only the CPU is here: the settings STRATAL_THREADS and STRATAL_TARGET say how it is used",
    "hub": "not here: st.load reads what st.save and torch.save wrote",
    "from_pretrained": "the classes of st.models have it: st.models.GPT2LMHeadModel.from_pretrained(folder)",
    "onnx export": "st.save(net, path, inputs=x) saves a graph, st.freeze(net, x).save(path) one to serve",
    "init_process_group destroy_process_group": "`stratal launch -n 4 script.py` starts ranks, which join at "
    "the first collective",
    "get_rank": "st.distributed.rank()",
    "get_world_size": "st.distributed.world_size()",
    "DistributedDataParallel": "st.distributed.parallel(step, ...): docs/parallel.md has an example",
    "jit script": "st.compile",
    "lax": "st.cond, st.switch, st.scan, st.while_loop, st.fori_loop and st.map",
    "numpy": "the functions are in stratal itself",
    "utils": "st.data for loaders, st.nn.utils for modules; st.checkpoint is a function",
    "layer_norm group_norm batch_norm dropout embedding": "st.nn.functional has it",
    "detach_": "x = x.detach()",
    "Size": "x.shape is a tuple of ints",
    "set_printoptions": "print(x.numpy()) prints as np.set_printoptions says",
    "is_tensor": "isinstance(x, st.Tensor)",
    "FloatTensor DoubleTensor LongTensor IntTensor BoolTensor": "st.tensor(data, dtype=...)",
    "keras layers Model": "st.nn has the layers, st.train.Trainer has fit, evaluate and predict",
    "Dense": "nn.Linear(inputs, outputs)",
    "summary": "net.summary(x) shows the layers, print(step.plan) what a compiled step runs",
    "fit evaluate predict": "st.train.Trainer(net, loss=.., optimizer=..) has fit, evaluate and predict",
    "DataParallel parallel": "one program runs on all cores by itself; for several processes, st.distributed",
    "stride as_strided storage data_ptr share_memory_": "a value has no memory of its own; x.numpy() has",
    "block_until_ready": "x.numpy() waits; st.inspect.Timer measures",
    "default_rng": "keys: st.random.key(0), st.random.split, st.randn(3, key=key)",
    "Module Sequential Linear Conv2d ReLU Parameter": "it is in st.nn",
    "Adam AdamW SGD": "it is in st.optim",
    "Dataset DataLoader TensorDataset ImageFolder Pipeline random_split": "it is in st.data",
    "ToTensor PILToTensor ToImage ToDtype ConvertImageDtype": "st.data.transforms.ToFloat makes floats from "
    "0 to 1 of bytes; sources give arrays, batches are tensors",
    "Resize": "st.data.ImageFolder(root, size=(height, width)) scales images as it reads them",
    "RandomResizedCrop": "st.data.ImageFolder(root, size=..) scales, transforms.RandomCrop(size) cuts",
    "RandomHorizontalFlip": "st.data.transforms.RandomFlip(p)",
    "RandomVerticalFlip": "st.data.transforms.RandomFlip(p, vertical=True)",
    "Grayscale RandomGrayscale": 'st.data.ImageFolder(root, mode="L") reads images as grey',
    "Lambda": "any function of an element is a transform",
    "ColorJitter RandomRotation RandomAffine RandomPerspective RandomErasing GaussianBlur": "not here: "
    "pipeline.map(f, seed=0) calls a function of yours with the element and a generator",
    "StandardScaler": "st.data.transforms.Standardize.of(values)",
    "OneHotEncoder": "st.data.transforms.OneHot.of(values)",
    "DistributedSampler": "DataLoader(.., shard=(rank, ranks), seed=0)",
    "Trainer": "it is in st.train",
    "ModelCheckpoint Checkpoint": "fit(.., checkpoints=st.train.CheckpointManager(folder))",
    "LearningRateScheduler LearningRateMonitor": "st.train.Schedule moves one of optim.lr_scheduler",
    "ReduceLROnPlateau StepLR CosineAnnealingLR OneCycleLR": "optim.lr_scheduler has it; in fit, "
    "st.train.Schedule moves it",
    "TensorBoardLogger SummaryWriter": "st.train.TensorBoard(folder), a callback",
    "callbacks": "they are in st.train: EarlyStopping, Schedule, EMA, CSVLog, TensorBoard",
    "functional losses criterion": "st.nn.functional has functions, losses too; st.nn the same as modules",
    "datasets transforms torchvision": "st.data has data sets and transforms, st.models networks",
    "profiler": "st.profile() of a block, `stratal profile FILE.py` of a script",
    "multiprocessing": "`stratal launch -n 4 script.py` and st.distributed; a DataLoader takes num_workers=4",
    "quantization quantize": "not here: st.autocast computes in 16 bits, st.amp has a scaler of losses",
    "save_model load_model": "st.save(net, path) and st.load(path)",
}
_METHODS: Final = {
    "stratal.linalg.as_pytorch": "cholesky cholesky_inverse cholesky_solve det inverse logdet matrix_exp "
    "matrix_power pinverse qr slogdet svd"
}
METHODS: Final = {name: module for module, names in _METHODS.items() for name in names.split()}
"""Methods of tensors that are functions of modules above them."""

_BY_NAME: Final = {name: instead for names, instead in _INSTEAD.items() for name in names.split()}

_ASKED_BY_NUMPY: Final = frozenset(("__array_interface__", "__array_struct__"))  # at each np.asarray


def instead_of(name: str) -> str:
    """Return what there is instead of a name, or nothing."""
    return _BY_NAME.get(name, "")


def no_name(module: str, name: str) -> Exception:
    """Return the error of a module's `__getattr__` for a name it does not have.

    Where it is imported from there, Python replaces an AttributeError by one without the hint: an ImportError
    stays.
    """
    error = no_attribute(sys.modules[module], f"module {module!r}", name)
    asking = sys._getframe(2)
    code = asking.f_code.co_code
    if instead_of(name) and asking.f_lasti >= 0 and code[asking.f_lasti] == opmap["IMPORT_FROM"]:
        return ImportError(str(error), name=module)
    return error


def no_attribute(owner: Any, shown: str, name: str) -> AttributeError:
    """Return the error for a name that something does not have; Python adds names that are like it."""
    if name in _ASKED_BY_NUMPY:
        return AttributeError(name)
    hint = instead_of(name)
    text = f"{shown} has no attribute {name!r}" + (f"\n  hint:  {hint}" if hint else "")
    return AttributeError(text, name=name, obj=owner)
