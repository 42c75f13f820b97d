// Package frigate is the door for the object detectors of Frigate, whose detector type "zmq" asks
// for one image at a time from a REQ socket.
//
//	detector                                            door
//	{"model_request": true, "model_name": "yolo.onnx"}  {"model_available", "model_loaded", …}
//	{"model_data": true, "model_name": …} · bytes       {"model_saved", "model_loaded", …}
//	{"shape": [1,320,320,3], "dtype": "uint8",          {"shape": [20,6], "dtype": "float32"}
//	 "model_type": "ssd"} · bytes                         · 480 bytes
//
// Every answer belongs to the one question before it. A row of the 20 is class, score, y_min,
// x_min, y_max, x_max, the coordinates from 0 to 1. Rows are sorted by falling score, and unused
// rows are zero. A detection that fails is answered with zeros, and the header has "error" and
// "type": a detector waits request_timeout_ms (200) for an answer, and begins anew without one.
//
//	intake.Listener → conn.serve ─┬─ conn.read     messages (package zmtp), and their end
//	                              └─ request.answer → predict.Door.Infer
//
// message.go has the meaning of messages, models.go the choice of the model, and store.go the files
// that detectors send.
//
// Concurrency: every connection has a goroutine that reads and one that answers.
//
// Memory: the image stays where zmtp has received it until its answer is ready.
//
// Source: Frigate 0.17, frigate/detectors/plugins/zmq_ipc.py.
package frigate
