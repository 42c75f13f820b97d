// Package modelfiles makes model files what the server serves: the files of [[model_file]], and
// those in the directories of [[model_folder]], are each read by a process of the Python package
// shiva-container, which package operate keeps alive.
//
// A [Manager] looks at the files again and again (look.go), as inotify and a clock tell it
// (hints_linux.go). What a directory has is found by its names and model.toml (folder.go) and
// Triton's config.pbtxt (triton.go, prototext.go), and compared by the files' sizes, times and
// contents (stamp.go). What has changed becomes a command (command.go) of a Python (python.go),
// and that a guest of the processes there (take.go), whose old ones serve until the new ones do.
package modelfiles
