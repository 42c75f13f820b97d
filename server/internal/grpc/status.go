package grpc

import (
	"errors"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
)

// maxText bounds an error's text, in bytes. A header has the text twice, once escaped and once in
// the details, and clients of gRPC's C core take 8 KiB of headers in all.
const maxText = 1 << 10

// text returns the text of an error for the client.
func text(err error) string { return fault.Cut(fault.PredictText(err), maxText) }

// statusOf returns an error as gRPC has it. Code and text follow the table of all doors. The
// details (google.rpc.ErrorInfo, domain "shivad") have the type's name as reason and whether a
// retry makes sense. An overload also has when to retry (google.rpc.RetryInfo), and a superseded
// frame the newer frame's "seq" or "id" as JSON.
func statusOf(err error) *status.Status {
	if errors.Is(err, errUnimplemented) {
		return status.New(codes.Unimplemented, text(err))
	}
	row := fault.Of(err)
	s := status.New(codes.Code(row.GRPC), text(err))
	info := &errdetails.ErrorInfo{Reason: row.Type, Domain: "shivad",
		Metadata: map[string]string{"retryable": strconv.FormatBool(row.Retryable)}}
	if by := fault.By(err); by != "" {
		info.Metadata["by"] = by
	}
	var detailed *status.Status
	if errors.Is(row.Err, scheduler.ErrOverloaded) {
		detailed, err = s.WithDetails(info,
			&errdetails.RetryInfo{RetryDelay: durationpb.New(max(retryAfter, fault.Again(err)))})
	} else {
		detailed, err = s.WithDetails(info)
	}
	if err != nil {
		return s
	}
	return detailed
}

// asStatus returns err with its status; nil stays nil.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	return statusOf(err).Err()
}

// retryAfter is how long a refused client should wait: for some batches, after which the queue has
// changed.
const retryAfter = 100 * time.Millisecond
