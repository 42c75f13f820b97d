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
//	listen.Listener → conn.serve ─┬─ conn.read     messages (package zmtp), and their end
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
//
// # Why it works as it does
//
//   - Instead of a late answer, a detector gets zeros. A detector that has waited for its 200 ms
//     makes a new socket and asks for its model again, and an answer that arrives then was executed
//     in vain. So the deadline is nine tenths of that time, from the first byte of the image: a
//     float image of 320 x 320 takes 100 ms of it at 100 Mbit/s. Zeros cost the detector one image.
//   - The door waits for a missing model, for 25 of the 30 s that Frigate waits, since Frigate
//     gives up for good when it is told that its model is not loaded. Only if it could send the
//     file is it told at once.
//   - An image before any question for a model ends the connection, unless the configuration has a
//     model for its type. libzmq sends such an image when it reconnects to a restarted server: the
//     name of the model is lost with the old connection. If the door answered with errors, the
//     detector would get zeros for ever, which look like an empty yard; without an answer it starts
//     again.
//   - The container makes the rows, as networks differ in how they encode positions; the door sorts
//     them and takes 20, since a detector stops at the first row below its threshold.
//   - A connection has a goroutine that reads ahead, so that the request of a detector that has
//     disconnected leaves the queue. A REQ socket sends nothing before its answer, so no message
//     waits there.
//   - Model files are opt-in twice (model_directory, server.repository): for most libraries a model
//     file is a program. A name cannot lead outside the directory (os.Root), and no file is
//     replaced, since the next sender may be another detector.
//   - The handshake and the frames are those of containers (containers/zmtp), with the socket type
//     REQ, so the tests against hostile peers there cover this door.
package frigate
