package gate

import "strings"

// platforms are the names that the Predict Protocol allows, by what containers call the same.
// What is not among them, such as "python", is shown as the container says it: the protocol has
// no name for a model that is a function.
//
// Source: Predict Protocol, version 2, "Platforms"; the names with two words are Triton's.
var platforms = map[string]string{
	"tensorrt":              "tensorrt_plan",
	"tensorrt_plan":         "tensorrt_plan",
	"graphdef":              "tensorflow_graphdef",
	"tensorflow_graphdef":   "tensorflow_graphdef",
	"savedmodel":            "tensorflow_savedmodel",
	"tensorflow_savedmodel": "tensorflow_savedmodel",
	"onnx":                  "onnx_onnxv1",
	"onnxruntime":           "onnx_onnxv1",
	"onnxruntime_onnx":      "onnx_onnxv1",
	"onnx_onnxv1":           "onnx_onnxv1",
	"torchscript":           "pytorch_torchscript",
	"pytorch_libtorch":      "pytorch_torchscript",
	"pytorch_torchscript":   "pytorch_torchscript",
	"mxnet":                 "mxnet_mxnet",
	"mxnet_mxnet":           "mxnet_mxnet",
	"caffe2":                "caffe2_netdef",
	"caffe2_netdef":         "caffe2_netdef",
}

// Platform is that of the model in the words of the Predict Protocol, where it has one.
func (t *Target) Platform() string {
	if name, ok := platforms[strings.ToLower(t.Spec.Platform)]; ok {
		return name
	}
	return t.Spec.Platform
}
