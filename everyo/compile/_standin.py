import math
import numpy as np
from numba import njit
for _k, _t in (("f32", np.float32), ("f64", np.float64)):
    for _op in "exp expm1 log log1p log10 sqrt sin cos tan sinh cosh tanh erf floor ceil".split():
        exec(f"@njit\ndef {_op}_{_k}(x): return t(math.{_op}(x))", dict(math=math, njit=njit, t=_t), globals())
    for _op, _e in dict(log2="np.log2(x)", cbrt="np.cbrt(x)", arcsin="math.asin(x)", arccos="math.acos(x)", arctan="math.atan(x)", rint="np.rint(x)", sign="np.sign(x)", sigmoid="t(1)/(t(1)+t(math.exp(-x)))").items():
        exec(f"@njit(error_model='numpy')\ndef {_op}_{_k}(x): return t({_e})", dict(math=math, np=np, njit=njit, t=_t), globals())
    for _op, _e in dict(power="x**y", arctan2="math.atan2(x,y)", floor_divide="np.floor_divide(x,y)", remainder="np.remainder(x,y)").items():
        exec(f"@njit(error_model='numpy')\ndef {_op}_{_k}(x, y): return t({_e})", dict(math=math, np=np, njit=njit, t=_t), globals())
@njit(error_model='numpy')
def ipow(x, y):
    r = np.int64(1)
    while y > 0:
        if y & 1: r *= x
        x *= x
        y >>= 1
    return r
for _k, _t in (("i32", np.int32), ("i64", np.int64)):
    for _op, _e in dict(power="ipow(i64(x),i64(y))", floor_divide="np.floor_divide(x,y) if y != 0 else t(0)", remainder="np.remainder(x,y) if y != 0 else t(0)").items():
        exec(f"@njit(error_model='numpy')\ndef {_op}_{_k}(x, y): return t({_e})", dict(ipow=ipow, i64=np.int64, math=math, np=np, njit=njit, t=_t), globals())
    exec(f"@njit\ndef sign_{_k}(x): return t(np.sign(x))", dict(np=np, njit=njit, t=_t), globals())
