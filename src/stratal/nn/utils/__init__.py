"""What PyTorch keeps in `nn.utils`."""

from stratal.nn.utils import parametrizations as parametrizations
from stratal.nn.utils import parametrize as parametrize
from stratal.nn.utils import rnn as rnn
from stratal.nn.utils.gradients import clip_grad_norm_ as clip_grad_norm_
from stratal.nn.utils.gradients import clip_grad_value_ as clip_grad_value_
from stratal.nn.utils.gradients import clip_grads_with_norm_ as clip_grads_with_norm_
from stratal.nn.utils.gradients import get_total_norm as get_total_norm
from stratal.nn.utils.gradients import parameters_to_vector as parameters_to_vector
from stratal.nn.utils.gradients import vector_to_parameters as vector_to_parameters
from stratal.nn.utils.norms import remove_spectral_norm as remove_spectral_norm
from stratal.nn.utils.norms import remove_weight_norm as remove_weight_norm
from stratal.nn.utils.norms import spectral_norm as spectral_norm
from stratal.nn.utils.norms import weight_norm as weight_norm
