import _socket
SOCKET = _socket.socket(fileno=3)
vigil = {"SOCKET": SOCKET}
for name in SOCKET.recv(1024).decode().split():
    module = vigil[name] = type(_socket)("vigil " + name)
    vars(module).update(vigil)
    exec(compile(SOCKET.recv(1 << 20), "<vigil %s>" % name, "exec"), vars(module))
kind, source, path, names = vigil["forkserver"].serve()
try:
    if kind == "module":
        names(source, True)
    else:
        exec(compile(source, path, "exec", 0, True), names)
except BaseException as error:
    vigil["worker"].leave_out_this_frame(error)
    vigil["reports"].when_written()
    raise
