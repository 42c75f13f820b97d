package grpc

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/regions"
)

// fetch reads the inputs of a request that are in shared memory.
func (d *Door) fetch(r *request, client string) error {
	memory := d.settings.Load().Memory
	left := r.limits.MessageBytes
	for i := range r.Inputs {
		left -= int64(len(r.Inputs[i].Data))
	}
	for i := range r.inputs {
		at := r.inputs[i].place
		if at.Region == "" {
			continue
		}
		// Charge no more than Fetch accepts.
		if err := r.use.More(min(at.Size, left), time.Now()); err != nil {
			return err
		}
		if err := d.Regions().Fetch(regions.Client{Address: client, Who: r.Who}, &r.Inputs[i], at, left,
			memory.Plain(nil).Get); err != nil {
			return err
		}
		left -= at.Size
	}
	return nil
}

// sharer is the client whose regions a call may name.
func (s *service) sharer(ctx context.Context) regions.Client {
	return regions.Client{Address: connOf(ctx).client, Who: s.who, Source: sourceOf(ctx, s.who)}
}

// notOffered turns the error of a server without shared memory into that of a call not offered.
func notOffered(err error) error {
	if regions.IsOff(err) {
		return fmt.Errorf("%w: %w", errUnimplemented, err)
	}
	return err
}

func (s *service) SystemSharedMemoryStatus(ctx context.Context,
	q *pb.SystemSharedMemoryStatusRequest) (*pb.SystemSharedMemoryStatusResponse, error) {
	list, err := s.door.Regions().Status(s.sharer(ctx), q.Name)
	all := make(map[string]regions.Region, len(list))
	for _, r := range list {
		key := r.Name
		if _, taken := all[key]; taken { // registered by another identity
			key = r.Identity + "/" + r.Name
		}
		all[key] = r
	}
	return convert(&pb.SystemSharedMemoryStatusResponse{}, map[string]any{"regions": all}, notOffered(err))
}

func (s *service) SystemSharedMemoryRegister(ctx context.Context,
	q *pb.SystemSharedMemoryRegisterRequest) (*pb.SystemSharedMemoryRegisterResponse, error) {
	if max(q.Offset, q.ByteSize) > math.MaxInt64 {
		return nil, fault.Invalid("failed to register shared memory region '%s': invalid args: offset %d and byte_size %d, expected at most %d",
			q.Name, q.Offset, q.ByteSize, math.MaxInt64)
	}
	r := regions.Region{Name: q.Name, Key: q.Key, Offset: int64(q.Offset), Size: int64(q.ByteSize)}
	return &pb.SystemSharedMemoryRegisterResponse{}, notOffered(s.door.Regions().Register(s.sharer(ctx), r))
}

func (s *service) SystemSharedMemoryUnregister(ctx context.Context,
	q *pb.SystemSharedMemoryUnregisterRequest) (*pb.SystemSharedMemoryUnregisterResponse, error) {
	return &pb.SystemSharedMemoryUnregisterResponse{}, notOffered(s.door.Regions().Unregister(s.sharer(ctx), q.Name))
}

// CudaSharedMemoryStatus lists no regions: none can be registered. Clients ask, and unregister all,
// before they use anything.
func (s *service) CudaSharedMemoryStatus(_ context.Context,
	q *pb.CudaSharedMemoryStatusRequest) (*pb.CudaSharedMemoryStatusResponse, error) {
	if q.Name != "" {
		return nil, fmt.Errorf("%w: no region of CUDA shared memory %q", scheduler.ErrNotFound, q.Name)
	}
	return &pb.CudaSharedMemoryStatusResponse{}, nil
}

// CudaSharedMemoryUnregister unregisters nothing.
func (s *service) CudaSharedMemoryUnregister(context.Context,
	*pb.CudaSharedMemoryUnregisterRequest) (*pb.CudaSharedMemoryUnregisterResponse, error) {
	return &pb.CudaSharedMemoryUnregisterResponse{}, nil
}
