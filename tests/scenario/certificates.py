"""Certificates for tests, made by the openssl command: PEM files NAME.pem and NAME.key in a directory."""
import os
import subprocess

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    def __init__(self, directory, name="authority"):
        self.directory, self.name = directory, name
        self.openssl("req", "-x509", *CURVE, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
                     "-addext", "basicConstraints=critical,CA:TRUE", "-days", "30")
        self.pem = os.path.join(directory, f"{name}.pem")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)

    def sign(self, name, names="DNS:localhost,IP:127.0.0.1"):
        """(certificate, key) for these names."""
        with open(os.path.join(self.directory, f"{name}.ext"), "w") as file:
            file.write(f"subjectAltName={names}\n")
        self.openssl("req", "-new", *CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key",
                     "-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        return tuple(os.path.join(self.directory, f"{name}.{kind}") for kind in ("pem", "key"))
