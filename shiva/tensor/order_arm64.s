//go:build !purego

#include "textflag.h"

// func swapNEON(dst, src *byte, n int, shuffle *[16]byte)
TEXT ·swapNEON(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
	MOVD shuffle+24(FP), R3
	VLD1 (R3), [V0.B16]
	CMP  $64, R2
	BLT  tail

loop:
	VLD1.P 64(R1), [V1.B16, V2.B16, V3.B16, V4.B16]
	VTBL   V0.B16, [V1.B16], V1.B16
	VTBL   V0.B16, [V2.B16], V2.B16
	VTBL   V0.B16, [V3.B16], V3.B16
	VTBL   V0.B16, [V4.B16], V4.B16
	VST1.P [V1.B16, V2.B16, V3.B16, V4.B16], 64(R0)
	SUB    $64, R2
	CMP    $64, R2
	BGE    loop
	CBZ    R2, done

tail:
	VLD1.P 16(R1), [V1.B16]
	VTBL   V0.B16, [V1.B16], V1.B16
	VST1.P [V1.B16], 16(R0)
	SUBS   $16, R2
	BNE    tail

done:
	RET
