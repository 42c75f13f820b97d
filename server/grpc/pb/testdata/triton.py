"""Prints the protocol as Triton's Python client has it, one line for each method, field and enumerator.

With tritonclient[grpc] installed:  python triton.py > triton.txt
"""

from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

Field = descriptor_pb2.FieldDescriptorProto


def print_enum(scope, enum):
    for value in enum.value:
        print(f"enum {scope}{enum.name}.{value.name} {value.number}")


def print_message(scope, message):
    name = scope + message.name
    for field in message.field:
        kind = field.type_name.removeprefix(".inference.") or Field.Type.Name(field.type)[5:].lower()
        label = "repeated " if field.label == Field.LABEL_REPEATED else ""
        oneof = f" of {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        print(f"field {name}.{field.name} {field.number} {label}{kind}{oneof}")
    for enum in message.enum_type:
        print_enum(name + ".", enum)
    for nested in message.nested_type:
        print_message(name + ".", nested)


for module in service_pb2, model_config_pb2:
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    print("#", file.name)
    for service in file.service:
        for method in service.method:
            streams = "stream " * method.client_streaming, "stream " * method.server_streaming
            types = (t.removeprefix(".inference.") for t in (method.input_type, method.output_type))
            print(f"rpc {service.name}.{method.name}", *(s + t for s, t in zip(streams, types, strict=True)))
    for enum in file.enum_type:
        print_enum("", enum)
    for message in file.message_type:
        print_message("", message)
