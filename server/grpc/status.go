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
	"github.com/shivad/shivad/server/internal/gate"
)

// maxText is the longest that an error's text may be, in bytes. It goes into a header, of which
// the clients of gRPC's C core take 8 KiB in all, twice: once escaped, and once in the details.
const maxText = 1 << 10

// text is what the client reads of an error.
func text(err error) string { return gate.Cut(gate.Text(err), maxText) }

// statusOf is the error as gRPC has it: code and text by the table of all doors, and in the
// details (google.rpc.ErrorInfo, domain "shivad") the type's name as reason and whether the
// request is worth sending again; of an overload also when (google.rpc.RetryInfo), and of a
// superseded frame by which one, as JSON: its "seq" or "id".
func statusOf(err error) *status.Status {
	if errors.Is(err, errUnimplemented) {
		return status.New(codes.Unimplemented, text(err))
	}
	row := gate.StatusOf(err)
	s := status.New(codes.Code(row.GRPC), text(err))
	info := &errdetails.ErrorInfo{Reason: row.Type, Domain: "shivad", Metadata: map[string]string{"retryable": strconv.FormatBool(row.Retryable)}}
	if by := gate.By(err); by != "" {
		info.Metadata["by"] = by
	}
	var detailed *status.Status
	if errors.Is(row.Err, scheduler.ErrOverloaded) {
		detailed, err = s.WithDetails(info, &errdetails.RetryInfo{RetryDelay: durationpb.New(max(retryAfter, gate.Again(err)))})
	} else {
		detailed, err = s.WithDetails(info)
	}
	if err != nil {
		return s
	}
	return detailed
}

// asStatus is err with its status; nil stays nil.
func asStatus(err error) error {
	if err == nil {
		return nil
	}
	return statusOf(err).Err()
}

// retryAfter is what a client that is refused should wait: some batches long, after which the
// queue looks different.
const retryAfter = 100 * time.Millisecond
