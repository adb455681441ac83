"""What is a copy in PyTorch is none of a tensor's memory here, what is a view there is one here, and what is
the tensor itself there is it here, where a call has nothing to do, too.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import stratal as st
from stratal.tensor.values.views import shares_memory

torch = pytest.importorskip("torch")

CALLS = (
    "F.pad(x,(0,0))", "F.interpolate(x[None,None],size=3)", "F.interpolate(x[None,None],scale_factor=1.0)",
    "F.interpolate(x[None,None],size=3,mode='linear')", "F.adaptive_avg_pool1d(x[None],3)",
    "F.avg_pool1d(x[None],1)", "F.max_pool1d(x[None],1)", "F.dropout(x,0.0)",
    "F.dropout(x,0.5,training=False)", "F.alpha_dropout(x,0.0)", "F.normalize(x*0+1,dim=0)", "F.relu(x)",
    "F.hardtanh(x,-1e9,1e9)", "F.leaky_relu(x,1.0)", "F.softmax(x,0)",
    "F.pixel_shuffle(x[None,:,None,None],1)", "F.fold(x.reshape(1,3,1),(1,1),(1,1))",
    "F.unfold(x.reshape(1,1,1,3),(1,1))", "L.roll(x,0)", "L.roll(x,0,0)", "L.flip(x,[])", "L.flip(x,[0])",
    "x.clamp(min=-1e9)", "L.clip(x,-1e9,1e9)", "x.repeat(1)", "L.tile(x,(1,))", "x.repeat_interleave(1)",
    "x.expand(3)", "x.expand(-1)", "x.float()", "x.to(x.dtype)", "x.type_as(x)", "x.contiguous()",
    "x.clone()", "x.detach()", "x.view(3)", "x.reshape(3)", "x.flatten()", "x.ravel()", "x.squeeze()",
    "x.squeeze(0)", "x.movedim(0,0)", "x.transpose(0,0)", "x.permute(0)", "L.cat([x])", "L.stack([x])",
    "L.hstack([x])", "L.vstack([x])", "L.block_diag(x)", "L.einsum('i->i',x)", "L.einsum('i',x)",
    "L.atleast_1d(x)", "L.atleast_2d(x)", "L.meshgrid(x,indexing='ij')[0]", "L.broadcast_tensors(x)[0]",
    "L.real(x)", "L.conj(x)", "L.positive(x)", "L.round(i)", "L.ceil(i)", "L.floor(i)", "L.trunc(i)",
    "L.abs(x)", "L.nan_to_num(i)", "L.nan_to_num(x)", "L.fix(i)", "x[None].sum(0)", "x[:,None].mean(1)",
    "x[:,None].amax(1)", "x[:,None].max(1)[0]", "L.cumsum(x[:1],0)", "L.unique(x[:1])",
    "L.gather(x,0,L.tensor([0,1,2]))", "L.index_select(x,0,L.tensor([0,1,2]))",
    "L.take_along_dim(x,L.tensor([0,1,2]),0)", "x[...]", "x[:]", "x[0:3]", "x[None]",
    "x[L.tensor([0,1,2])]", "x[L.tensor([True,True,True])]", "L.masked_select(x,x==x)", "L.where(x==x,x,x)",
    "L.matrix_power(m,1)", "L.linalg.multi_dot([m,m])", "L.tril(m,10)", "L.triu(m,-10)", "L.diag(m)",
    "L.diag(x)", "L.diagonal(m)", "L.diagflat(x)", "L.diag_embed(x)", "L.rot90(m,0)", "L.rot90(m,4)",
    "L.fliplr(m)", "L.flipud(m)", "L.trace(m)", "L.block_diag(m)", "L.kron(x,L.ones(1))",
    "L.tensor_split(x,1)[0]", "L.chunk(x,1)[0]", "L.split(x,3)[0]", "L.unbind(x)[0]", "L.hsplit(x,1)[0]",
    "L.narrow(x,0,0,3)", "L.select(m,0,0)", "L.unflatten(x,0,(1,3))", "L.swapaxes(m,0,1)", "L.dstack([x])",
    "L.column_stack([x])", "L.cartesian_prod(x)", "L.combinations(x,1)", "L.logsumexp(x[:,None],1)",
    "L.norm(x[:,None],dim=1)", "L.prod(x[:,None],1)", "L.nansum(x[:,None],1)", "L.median(x[:,None],1)[0]",
    "L.mode(x[:,None],1)[0]", "L.quantile(x[:,None],0.5,dim=1)", "L.pow(x,1)", "x**1", "x*1", "x+0", "+x",
    "x/1", "L.add(x,0)", "L.lerp(x,x,0.0)", "L.renorm(m,2,0,1e9)", "L.polar(x,x).real",
    "L.index_add(x,0,L.tensor([0]),L.zeros(1))", "L.scatter(x,0,L.tensor([0]),L.zeros(1))",
    "L.select_scatter(m,m[0],0,0)", "L.slice_scatter(x,x)", "L.diff(x,n=0)", "L.gradient(x)[0]",
    "L.histc(x)", "L.bucketize(x,x)", "L.clone(x)", "L.asarray(x)", "L.as_tensor(x)", "L.moveaxis(x,0,0)",
    "F.glu(L.cat([x,x]),0)", "F.layer_norm(x,(3,))", "F.one_hot(i)", "F.embedding(i,m)",
    "F.local_response_norm(x[None,None],1)",
    "F.grid_sample(x.reshape(1,1,1,3),L.zeros(1,1,3,2),align_corners=False)", "F.threshold(x,-1e9,0.0)",
    "F.prelu(x,L.ones(1))", "F.channel_shuffle(x[None,:,None,None],1)",
    "F.feature_alpha_dropout(x[None],0.0)", "F.dropout1d(x[None],0.0)", "x.tensor_split(1)[0]",
    "x.reshape_as(x)", "x.view_as(x)", "x.expand_as(x)", "x.masked_scatter(x==x,x)", "x.squeeze(-1)",
    "x.unsqueeze(0)", "x.cpu()", "x.double()", "x.to('cpu')",
    "x.to('cpu',copy=True)", "x.to(L.float32,copy=True)", "x.to(L.float32,False,True)", "x.to(x,copy=True)",
    "x.to(x,False,False)", "x.positive()", "x.real", "x.conj()", "L.atleast_3d(m[None])",
    "x.requires_grad_()", "x.data", "z.sum()",
    "z.prod()", "z.max()", "z.amin()", "z.mean()", "z.squeeze()", "z.flatten()", "z.reshape(1)",
    "z.view(())", "z.expand(1)", "z.cumsum(0)", "z.std(correction=0)", "z.logsumexp(0)", "z.norm()",
    "z.median()", "L.flip(z,[])", "L.roll(z,0)", "L.trunc(z)", "L.sum(z)", "L.any(b)", "L.all(b)",
    "L.cummax(z,0)[0]", "L.aminmax(z)[0]", "L.nansum(z)", "L.argmax(z)", "L.count_nonzero(z)",
)  # fmt: skip


def outcome(library: Any, call: str) -> Any:
    t = library.tensor
    given = {"x": t([1.0, -2.0, 3.0]) * 1, "i": t([0, 1, 2]), "z": t(3.0) * 1, "b": t(True)}
    given["m"] = t([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [1.0, 0.0, 1.0]]) * 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = eval(call, {"L": library, "F": library.nn.functional, **given})  # noqa: S307
    itself = any(made is t for t in given.values())
    if library is st:
        shares = any(made is t or shares_memory(made, t) for t in given.values())
        return shares, itself, tuple(made.shape), made.dtype.name
    at = [t.untyped_storage().data_ptr() for t in given.values()]
    shares = made.untyped_storage().data_ptr() in at
    return shares, itself, tuple(made.shape), str(made.dtype).removeprefix("torch.")


def test_a_matrix_product_in_place_is_none() -> None:
    for library in (torch, st):
        x = library.tensor([[1.0, 2.0], [3.0, 4.0]])
        before = x
        x @= x
        assert x is not before
        assert before.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert x.tolist() == [[7.0, 10.0], [15.0, 22.0]]


def test_astype_and_reshape_copy_when_told() -> None:
    x = st.tensor([1.0, 2.0])
    for made in (x.astype(st.float32), st.astype(x, st.float32), st.reshape(x, (2,), copy=True)):
        made.fill_(9.0)
    assert x.tolist() == [1.0, 2.0]
    assert x.astype(st.float32, copy=False) is x
    with pytest.raises(ValueError, match="copy=False"):
        st.reshape(st.ones((2, 3)).T, (6,), copy=False)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_gives_a_copy_or_a_view_as_in_pytorch(call: str) -> None:
    want = outcome(torch, call)
    for _ in range(3):  # plain, recorded, known
        assert outcome(st, call) == want
