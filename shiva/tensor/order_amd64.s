//go:build !purego

#include "textflag.h"

// func swapAVX2(dst, src *byte, n int, shuffle *[16]byte)
TEXT ·swapAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ shuffle+24(FP), AX
	VBROADCASTI128 (AX), Y0

	// 128 bytes per iteration: four loads in flight keep the load ports busy. Prefetching 2 KiB
	// ahead, on both sides, gains 15 % at 1 MiB, where source and destination together fill the
	// second-level cache; it may run past the end, since a prefetch never faults.
	CMPQ CX, $128
	JB   tail

loop:
	PREFETCHT0 2048(SI)
	PREFETCHT0 2112(SI)
	PREFETCHT0 2048(DI)
	PREFETCHT0 2112(DI)
	VMOVDQU (SI), Y1
	VMOVDQU 32(SI), Y2
	VMOVDQU 64(SI), Y3
	VMOVDQU 96(SI), Y4
	VPSHUFB Y0, Y1, Y1
	VPSHUFB Y0, Y2, Y2
	VPSHUFB Y0, Y3, Y3
	VPSHUFB Y0, Y4, Y4
	VMOVDQU Y1, (DI)
	VMOVDQU Y2, 32(DI)
	VMOVDQU Y3, 64(DI)
	VMOVDQU Y4, 96(DI)
	ADDQ    $128, SI
	ADDQ    $128, DI
	SUBQ    $128, CX
	CMPQ    CX, $128
	JAE     loop
	TESTQ   CX, CX
	JZ      done

tail:
	VMOVDQU (SI), Y1
	VPSHUFB Y0, Y1, Y1
	VMOVDQU Y1, (DI)
	ADDQ    $32, SI
	ADDQ    $32, DI
	SUBQ    $32, CX
	JNZ     tail

done:
	VZEROUPPER
	RET

// func swapAVX512(dst, src *byte, n int, shuffle *[16]byte)
TEXT ·swapAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ shuffle+24(FP), AX
	VBROADCASTI32X4 (AX), Z0

	// From 8 KiB, both halves at once: with two pages in flight, reading from memory takes 0.75 of
	// the time, and needs no prefetching.
	CMPQ CX, $8192
	JB   single
	MOVQ CX, BX
	SHRQ $1, BX
	ANDQ $~127, BX
	LEAQ (DI)(BX*1), R8
	LEAQ (SI)(BX*1), R9
	SUBQ BX, CX
	SUBQ BX, CX

both:
	VMOVDQU64 (SI), Z1
	VMOVDQU64 64(SI), Z2
	VMOVDQU64 (R9), Z3
	VMOVDQU64 64(R9), Z4
	VPSHUFB   Z0, Z1, Z1
	VPSHUFB   Z0, Z2, Z2
	VPSHUFB   Z0, Z3, Z3
	VPSHUFB   Z0, Z4, Z4
	VMOVDQU64 Z1, (DI)
	VMOVDQU64 Z2, 64(DI)
	VMOVDQU64 Z3, (R8)
	VMOVDQU64 Z4, 64(R8)
	ADDQ      $128, SI
	ADDQ      $128, DI
	ADDQ      $128, R9
	ADDQ      $128, R8
	SUBQ      $128, BX
	JNZ       both
	MOVQ      R8, DI
	MOVQ      R9, SI
	TESTQ     CX, CX
	JZ        done

single:
	VMOVDQU64 (SI), Z1
	VPSHUFB   Z0, Z1, Z1
	VMOVDQU64 Z1, (DI)
	ADDQ      $64, SI
	ADDQ      $64, DI
	SUBQ      $64, CX
	JNZ       single

done:
	VZEROUPPER
	RET

// func throughAVX2(dst, src *byte, n int, shuffle *[16]byte)
TEXT ·throughAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ shuffle+24(FP), AX
	VBROADCASTI128 (AX), Y0

loop:
	VMOVDQU  (SI), Y1
	VMOVDQU  32(SI), Y2
	VPSHUFB  Y0, Y1, Y1
	VPSHUFB  Y0, Y2, Y2
	VMOVNTDQ Y1, (DI)
	VMOVNTDQ Y2, 32(DI)
	ADDQ     $64, SI
	ADDQ     $64, DI
	SUBQ     $64, CX
	JNZ      loop
	SFENCE // orders these stores before those that publish them
	VZEROUPPER
	RET

// func throughAVX512(dst, src *byte, n int, shuffle *[16]byte)
TEXT ·throughAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ shuffle+24(FP), AX
	VBROADCASTI32X4 (AX), Z0

loop:
	VMOVDQU64 (SI), Z1
	VPSHUFB   Z0, Z1, Z1
	VMOVNTDQ  Z1, (DI)
	ADDQ      $64, SI
	ADDQ      $64, DI
	SUBQ      $64, CX
	JNZ       loop
	SFENCE
	VZEROUPPER
	RET
