"""What the help of each command says, with something to try."""

from __future__ import annotations

ABOUT = """\
Input for model training, prepared by other processes and machines.

One dispatcher knows the datasets, any number of workers make the elements, and a training program
reads them with penstock.data.experimental.service.distribute.

on one machine:
  penstock dispatcher --port 5050 --work-dir ~/penstock
  penstock worker --dispatcher localhost:5050
  penstock status grpc://localhost:5050

and in the program that trains:
  dataset = dataset.apply(distribute("distributed_epoch", "grpc://localhost:5050"))

Nothing else is needed between programs of one user on one machine. Between machines, everybody
needs the same secret: see penstock certs --help.
"""

DISPATCHER = """\
Starts a dispatcher and prints its address. It runs until Ctrl-C or SIGTERM.

With --work-dir it keeps a journal there: killed and started again with the same --port and
--work-dir, it goes on where it was, and so does everybody who was reading.

example:
  penstock dispatcher --port 5050 --work-dir ~/penstock

for other machines:
  penstock certs ~/certs --host data1.example.org
  penstock dispatcher --port 5050 --host data1.example.org --certificates ~/certs
"""

WORKER = """\
Starts a worker, which makes elements for whoever reads from its dispatcher. Workers may come and
go at any time; start as many as there is work for.

Ctrl-C or SIGTERM lets it finish what others wait for, and then leave. A second one stops it at
once: what it had begun, another worker makes again.

Every plan runs in a process of its own, on Linux. One that a function ends is replaced, and costs
readers of other plans nothing; penstock status counts them as restarts.

Functions of your own modules are imported by their names, so start a worker where they can be
imported: in the folder of your program, or with PYTHONPATH.

example:
  penstock worker --dispatcher localhost:5050
"""

STATUS = """\
Shows the workers and jobs of a service, and how many workers its readers could use.

examples:
  penstock status grpc://localhost:5050 --watch
  penstock status grpc://localhost:5050 --json
"""

FORGET = """\
Makes a dispatcher forget a job that was read, or all of them, so that the name can be used again.
Saved states of its readers can still be restored, but what other readers have read is not known
any more. A job that somebody reads is not forgotten.

A dispatcher forgets jobs by itself an hour after they were read to their end (penstock dispatcher
--forget-after SECONDS), and jobs without a name at once.

examples:
  penstock forget grpc://localhost:5050 training
  penstock forget grpc://localhost:5050
"""

CERTS = """\
Makes a folder with all that the machines of a service need to trust each other, and nobody else:
certificates and keys for servers and for clients, and a token. Copy the folder to every machine,
over a secure connection, and name it there: with --certificates, with the environment variable
PENSTOCK_CERTIFICATES (which programs that read need), or in the config of a server.

example:
  penstock certs ~/certs --host data1.example.org --host 10.0.0.7
"""
