"""The messages of the Open Inference Protocol's gRPC service, in a descriptor pool of their own.

Generated modules would register `inference.*` in the process' default pool, where a client's own generated
modules register the same names: one process could not have both. Here the descriptors are made at run time
from the table below, which reads as the fields of a .proto file do; `map` is a map from strings, `oneof` puts
a field into the message's one `parameter_choice`. Field numbers are the protocol's: KServe's and Triton's.
"""

from __future__ import annotations

from typing import Any, Final

from stratal.serve.extra import required

PACKAGE: Final = "inference"
SERVICE: Final = "GRPCInferenceService"
METHODS: Final = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
)  # fmt: skip
STREAM: Final = "ModelStreamInfer"  # of ModelInferRequests and ModelStreamInferResponses
MESSAGES: Final = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1",
    "ModelReadyRequest": "string name = 1; string version = 2",
    "ModelReadyResponse": "bool ready = 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name = 1; string version = 2; repeated string extensions = 3",
    "ModelMetadataRequest": "string name = 1; string version = 2",
    "ModelMetadataResponse": "string name = 1; repeated string versions = 2; string platform = 3; "
    "repeated ModelMetadataResponse.TensorMetadata inputs = 4; "
    "repeated ModelMetadataResponse.TensorMetadata outputs = 5",
    "ModelMetadataResponse.TensorMetadata": "string name = 1; string datatype = 2; repeated int64 shape = 3",
    "InferParameter": "oneof bool bool_param = 1; oneof int64 int64_param = 2; "
    "oneof string string_param = 3; oneof double double_param = 4; oneof uint64 uint64_param = 5",
    "InferTensorContents": "repeated bool bool_contents = 1; repeated int32 int_contents = 2; "
    "repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4; "
    "repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6; "
    "repeated double fp64_contents = 7; repeated bytes bytes_contents = 8",
    "ModelInferRequest": "string model_name = 1; string model_version = 2; string id = 3; "
    "map InferParameter parameters = 4; repeated ModelInferRequest.InferInputTensor inputs = 5; "
    "repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6; "
    "repeated bytes raw_input_contents = 7",
    "ModelInferRequest.InferInputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3; "
    "map InferParameter parameters = 4; InferTensorContents contents = 5",
    "ModelInferRequest.InferRequestedOutputTensor": "string name = 1; map InferParameter parameters = 2",
    "ModelInferResponse": "string model_name = 1; string model_version = 2; string id = 3; "
    "map InferParameter parameters = 4; repeated ModelInferResponse.InferOutputTensor outputs = 5; "
    "repeated bytes raw_output_contents = 6",
    "ModelInferResponse.InferOutputTensor": "string name = 1; string datatype = 2; repeated int64 shape = 3; "
    "map InferParameter parameters = 4; InferTensorContents contents = 5",
    "ModelStreamInferResponse": "string error_message = 1; ModelInferResponse infer_response = 2",
    "ModelRepositoryParameter": "oneof bool bool_param = 1; oneof int64 int64_param = 2; "
    "oneof string string_param = 3; oneof bytes bytes_param = 4",
    "RepositoryIndexRequest": "string repository_name = 1; bool ready = 2",
    "RepositoryIndexResponse": "repeated RepositoryIndexResponse.ModelIndex models = 1",
    "RepositoryIndexResponse.ModelIndex": "string name = 1; string version = 2; string state = 3; "
    "string reason = 4",
    "RepositoryModelLoadRequest": "string repository_name = 1; string model_name = 2; "
    "map ModelRepositoryParameter parameters = 3",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "string repository_name = 1; string model_name = 2; "
    "map ModelRepositoryParameter parameters = 3",
    "RepositoryModelUnloadResponse": "",
}  # fmt: skip


def messages() -> dict[str, Any]:
    """Return the class of each message by its name. Raises: MissingExtraError without protobuf."""
    descriptor_pb2 = required("google.protobuf.descriptor_pb2", "grpc")
    factory = required("google.protobuf.message_factory", "grpc")
    pool = required("google.protobuf.descriptor_pool", "grpc").DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(
        name="stratal/inference.proto", package=PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {}
    for name, fields in MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        made[name] = message = (made[outer].nested_type if outer else file.message_type).add(name=inner)
        for field in filter(None, map(str.strip, fields.split(";"))):
            _add_field(message, name, field.split())
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES
    }


def _add_field(message: Any, owner: str, words: list[str]) -> None:
    """Add a field, given as the words of its line."""
    *kinds, name, _, number = words
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if kinds[0] in ("repeated", "map") else field.LABEL_OPTIONAL
    if kinds[0] == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", ["string", "key", "=", "1"])
        _add_field(entry, "", [kinds[1], "value", "=", "2"])
        _typed(field, f"{owner}.{entry.name}")
    else:
        _typed(field, kinds[-1])
    if kinds[0] == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0


def _typed(field: Any, kind: str) -> None:
    if kind[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
