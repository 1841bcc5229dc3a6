"""Programs of PyTorch with the number of steps that a person counts in them."""

from __future__ import annotations

# Of each program: its steps, and its source behind `torch_running.PRELUDE`.
PROGRAMS: dict[str, tuple[int, str]] = {
    "cross validation, all optimizers kept": (9, """
kept = []
for fold in range(3):
    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    kept.append((net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)))
    for step in range(3):
        optimizer.zero_grad()
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        net.eval()(torch.randn(5, 8))
"""),
    "cross validation, all made before": (9, """
nets = [network() for _ in range(3)]
optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
for net, optimizer in zip(nets, optimizers):
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()
"""),
    "cross validation, an ensemble evaluated in between": (8, """
nets, kept = [], []
for fold in range(2):
    nets.append(network())
    kept.append(torch.optim.SGD(nets[-1].parameters(), 0.1))
    for step in range(4):
        nets[-1](torch.randn(5, 8)).sum().backward()
        kept[-1].step()
        with torch.no_grad():
            sum(net(torch.randn(2, 8)) for net in nets)
"""),
    "pretrain, then finetune a head": (8, """
body, old, head = network(), nn.Linear(4, 8), nn.Linear(4, 2)
pretraining = torch.optim.AdamW([*body.parameters(), *old.parameters()])
for step in range(5):
    x = torch.randn(5, 8)
    (old(body(x)) - x).pow(2).mean().backward()
    pretraining.step()
    pretraining.zero_grad()
finetuning = torch.optim.SGD(head.parameters(), 0.1)
for step in range(3):
    head(body(torch.randn(5, 8))).sum().backward()
    finetuning.step()
    finetuning.zero_grad()
"""),
    "pretrain, then finetune a head, both optimizers made before": (8, """
body, old, head = network(), nn.Linear(4, 8), nn.Linear(4, 2)
pretraining = torch.optim.AdamW([*body.parameters(), *old.parameters()])
finetuning = torch.optim.SGD(head.parameters(), 0.1)
for step in range(5):
    x = torch.randn(5, 8)
    (old(body(x)) - x).pow(2).mean().backward()
    pretraining.step()
    pretraining.zero_grad()
for step in range(3):
    with torch.no_grad():
        features = body(torch.randn(5, 8))
    head(features).sum().backward()
    finetuning.step()
    finetuning.zero_grad()
"""),
    "another optimizer in every third iteration": (6, """
one, two = network(), network()
first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.Adam(two.parameters())
for step in range(6):
    first.zero_grad(), second.zero_grad()
    (one(torch.randn(5, 8)) + two(torch.randn(5, 8))).pow(2).mean().backward()
    first.step()
    if step % 3 == 2:
        second.step()
"""),
    "a frozen body whose optimizer begins later": (6, """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = network(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))

model = Model()
of_body, of_head = torch.optim.SGD(model.body.parameters(), 0.1), torch.optim.SGD(model.head.parameters(), 0.1)
model.body.requires_grad_(False)
for step in range(6):
    if step == 3:
        model.body.requires_grad_(True)
    model(torch.randn(5, 8)).sum().backward()
    if step >= 3:
        of_body.step()
    of_head.step()
"""),
    "GAN, the discriminator first": (4, """
G, D = network(4), network(4)
of_G, of_D = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(4):
    of_D.zero_grad()
    fake = G(torch.randn(5, 4))
    (D(torch.randn(5, 4)) - D(fake.detach())).sum().backward()
    of_D.step()
    of_G.zero_grad()
    D(fake).sum().backward()
    of_G.step()
"""),
    "GAN, the fake without gradients": (4, """
G, D = network(4), network(4)
of_G, of_D = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(4):
    with torch.no_grad():
        fake = G(torch.randn(5, 4))
    (D(torch.randn(5, 4)) - D(fake)).sum().backward()
    of_D.step()
    D.zero_grad()
    D(G(torch.randn(5, 4))).sum().backward()
    of_G.step()
    G.zero_grad()
    D.zero_grad()
"""),
    "GAN, whose other half is frozen": (4, """
G, D = network(4), network(4)
of_G, of_D = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(4):
    D.requires_grad_(False)
    fake = G(torch.randn(5, 4))
    D(fake).sum().backward()
    of_G.step()
    of_G.zero_grad()
    D.requires_grad_(True)
    (D(torch.randn(5, 4)) - D(fake.detach())).sum().backward()
    of_D.step()
    of_D.zero_grad()
"""),
    "GAN in one module": (3, """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.G, self.D = network(4), network(4)

    def forward(self, x, part):
        fake = self.G(x)
        return self.D(fake).sum() if part == "G" else (self.D(x) - self.D(fake.detach())).sum()

both = Both()
of_G, of_D = torch.optim.Adam(both.G.parameters()), torch.optim.Adam(both.D.parameters())
for step in range(3):
    both.zero_grad()
    both(torch.randn(5, 4), "D").backward()
    of_D.step()
    both.zero_grad()
    both(torch.randn(5, 4), "G").backward()
    of_G.step()
"""),
    "WGAN, five updates of the critic for one of the generator": (2, """
G, D = network(4), network(4)
of_G, of_D = torch.optim.RMSprop(G.parameters()), torch.optim.RMSprop(D.parameters())
for step in range(2):
    for _ in range(5):
        of_D.zero_grad()
        fake = G(torch.randn(5, 4)).detach()
        (D(fake) - D(torch.randn(5, 4))).mean().backward()
        of_D.step()
    of_G.zero_grad()
    (-D(G(torch.randn(5, 4)))).mean().backward()
    of_G.step()
"""),
    "WGAN with a gradient penalty": (3, """
G, D = network(4), network(4)
of_G, of_D = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(3):
    real, fake = torch.randn(5, 4), G(torch.randn(5, 4)).detach()
    mixed = (real + fake).requires_grad_()
    (slope,) = torch.autograd.grad(D(mixed).sum(), mixed, create_graph=True)
    of_D.zero_grad()
    (D(fake).mean() - D(real).mean() + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
    of_D.step()
    of_G.zero_grad()
    (-D(G(torch.randn(5, 4)))).mean().backward()
    of_G.step()
"""),
    "actor and critic, both losses first": (4, """
actor, critic = network(), network()
of_actor, of_critic = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for step in range(4):
    state = torch.randn(5, 8)
    with torch.no_grad():
        actor(state)
    value = critic(state)
    critic_loss = (value - 1).pow(2).mean()
    actor_loss = -(actor(state).log_softmax(1) * (1 - value.detach())).mean()
    of_actor.zero_grad(), of_critic.zero_grad()
    actor_loss.backward(), critic_loss.backward()
    of_actor.step(), of_critic.step()
"""),
    "TD3, the actor every other time": (6, """
actor, critic = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(5, 1))
of_actor, of_critic = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
for step in range(6):
    state, action = torch.randn(6, 3), torch.randn(6, 2)
    of_critic.zero_grad()
    critic(torch.cat([state, action], 1)).pow(2).mean().backward()
    of_critic.step()
    if step % 2:
        of_actor.zero_grad()
        (-critic(torch.cat([state, actor(state)], 1))).mean().backward()
        of_actor.step()
"""),
    "SAC, with a temperature that is no module's": (3, """
actor, critic = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Linear(5, 1))
temperature = torch.zeros(1, requires_grad=True)
of_actor, of_critic = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
of_temperature = torch.optim.Adam([temperature])
for step in range(3):
    state, action = torch.randn(6, 3), torch.randn(6, 2)
    of_critic.zero_grad()
    critic(torch.cat([state, action], 1)).pow(2).mean().backward()
    of_critic.step()
    of_actor.zero_grad()
    (-critic(torch.cat([state, actor(state)], 1)) * temperature.exp().item()).mean().backward()
    of_actor.step()
    with torch.no_grad():
        entropy = actor(state).mean()
    of_temperature.zero_grad()
    (temperature.exp() * entropy).sum().backward()
    of_temperature.step()
"""),
    "two optimizers of one model in turns": (6, """
encoder, decoder = network(), nn.Linear(4, 8)
optimizers = torch.optim.SGD(encoder.parameters(), 0.1), torch.optim.SGD(decoder.parameters(), 0.1)
for step in range(6):
    for optimizer in optimizers:
        optimizer.zero_grad()
    decoder(encoder(torch.randn(5, 8))).pow(2).mean().backward()
    optimizers[(step + 1) % 2].step()
"""),
    "two optimizers of one model, in one step": (4, """
net = network()
matrices = torch.optim.SGD([p for p in net.parameters() if p.dim() == 2], 0.1, momentum=0.9)
others = torch.optim.AdamW([p for p in net.parameters() if p.dim() < 2])
for step in range(4):
    net(torch.randn(5, 8)).pow(2).mean().backward()
    for optimizer in (matrices, others):
        optimizer.step()
        optimizer.zero_grad()
"""),
    "tasks in turns, an optimizer for each head": (6, """
class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = network(), nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 3)])

    def forward(self, x, task):
        return self.heads[task](self.body(x))

model = Tasks()
of_body = torch.optim.SGD(model.body.parameters(), 0.1)
of_heads = [torch.optim.SGD(head.parameters(), 0.1) for head in model.heads]
for step in range(6):
    model(torch.randn(5, 8), step % 2).sum().backward()
    of_body.step()
    of_heads[step % 2].step()
    model.zero_grad()
"""),
    "LBFGS, while another optimizer is kept": (3, """
net, other = network(), network()
old = torch.optim.SGD(other.parameters(), 0.1)
other(torch.randn(5, 8)).sum().backward()
old.step()
optimizer, x = torch.optim.LBFGS(net.parameters(), max_iter=3), torch.randn(5, 8)

def closure():
    optimizer.zero_grad()
    loss = net(x).pow(2).sum()
    loss.backward()
    return loss

for step in range(2):
    optimizer.step(closure)
"""),
    "a teacher that was trained before and is kept": (7, """
teacher, student = network(), network()
of_teacher = torch.optim.Adam(teacher.parameters())
for step in range(3):
    teacher(torch.randn(5, 8)).sum().backward()
    of_teacher.step()
of_student = torch.optim.Adam(student.parameters())
for step in range(4):
    x = torch.randn(5, 8)
    (student(x) - teacher(x).detach()).pow(2).mean().backward()
    of_student.step()
"""),
    "a mean teacher and averaged weights": (4, """
net = network()
teacher = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.AdamW(net.parameters())
schedule = torch.optim.swa_utils.SWALR(optimizer, 0.01)
for step in range(4):
    x = torch.randn(5, 8)
    with torch.no_grad():
        expected = teacher(x)
    (net(x) - expected).pow(2).mean().backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    teacher.update_parameters(net)
"""),
    "parameters that are added later": (5, """
net, head = network(), nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(5):
    if step == 2:
        optimizer.add_param_group({"params": head.parameters()})
    head(net(torch.randn(5, 8))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""),
    "an optimizer for each epoch": (6, """
net, kept = network(), []
for epoch in range(3):
    kept.append(torch.optim.SGD(net.parameters(), 0.1))
    for step in range(2):
        net(torch.randn(5, 8)).sum().backward()
        kept[-1].step()
"""),
    "two optimizers, one scaler, gradients that are not finite": (3, """
net, other = network(), network()
optimizers = [torch.optim.AdamW(each.parameters()) for each in (net, other)]
scaler = torch.amp.GradScaler("cpu")
for step in range(3):
    loss = net(torch.randn(5, 8)).sum() * (float("inf") if step == 1 else 1.0) + other(torch.randn(5, 8)).sum()
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
"""),
    "an optimizer that wraps another": (3, """
class Wrapping(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)

net = network()
optimizer = Wrapping(torch.optim.SGD(net.parameters(), 0.1))
for step in range(3):
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""),
    "gradients by autograd.grad, given to an optimizer": (4, """
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    loss = net(torch.randn(5, 8)).pow(2).mean()
    for parameter, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()))):
        parameter.grad = gradient
    optimizer.step()
"""),
    "gradients by autograd.grad, without an optimizer": (4, """
net = network()
for step in range(4):
    loss = net(torch.randn(5, 8)).pow(2).mean()
    with torch.no_grad():
        for parameter, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()))):
            parameter -= 0.1 * gradient
"""),
    "torch.func.grad of a functional call": (4, """
from torch.func import functional_call, grad
net = network()
parameters = {name: each.detach().clone() for name, each in net.named_parameters()}

def loss(parameters, x):
    return functional_call(net, parameters, (x,)).pow(2).mean()

for step in range(4):
    gradients = grad(loss)(parameters, torch.randn(5, 8))
    parameters = {name: each - 0.1 * gradients[name] for name, each in parameters.items()}
"""),
    "torch.func, a gradient for each sample": (3, """
from torch.func import functional_call, grad_and_value, vmap
net = network()
parameters = {name: each.detach() for name, each in net.named_parameters()}

def loss(parameters, x):
    return functional_call(net, parameters, (x.unsqueeze(0),)).pow(2).mean()

for step in range(3):
    gradients, losses = vmap(grad_and_value(loss), (None, 0))(parameters, torch.randn(5, 8))
    parameters = {name: each - 0.1 * gradients[name].mean(0) for name, each in parameters.items()}
"""),
    "optimizers that step in the backward": (4, """
net = network()
optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in net.parameters()}

def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for step in range(4):
    net(torch.randn(5, 8)).pow(2).mean().backward()
"""),
    "optimizers that step in the backward, not all of them": (4, """
net = network()
net.unused = nn.Linear(2, 2)
net.forward = lambda x: net[2](net[1](net[0](x)))
optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in net.parameters()}

def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for step in range(4):
    net(torch.randn(5, 8)).pow(2).mean().backward()
"""),
    "by hand, then with an optimizer that steps every other time": (7, """
import copy, pickle
net = network()

def by_hand():
    gradients = torch.autograd.grad(net(torch.randn(5, 8)).sum(), net.parameters())
    for gradient, parameter in zip(gradients, net.parameters()):
        parameter.data.sub_(gradient, alpha=0.1)

def accumulated(optimizer):
    net(torch.randn(5, 8)).sum().backward()
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()

by_hand(), by_hand()
accumulated(torch.optim.SGD(net.parameters(), 0.1))
by_hand()
optimizer = torch.optim.Adam(net.parameters())
saved = pickle.dumps((net, optimizer))
accumulated(optimizer)
del optimizer
by_hand()
net, optimizer = pickle.loads(saved)
accumulated(optimizer)
"""),
    "an optimizer that gets its parameters later": (3, """
net = network()
optimizer = torch.optim.SGD([{"params": []}], 0.1)
net(torch.randn(5, 8)).sum().backward()
optimizer.add_param_group({"params": list(net.parameters())})
for step in range(2):
    net(torch.randn(5, 8)).sum().backward()
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
"""),
    "an optimizer that steps in a thread": (4, """
import concurrent.futures
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
pool = concurrent.futures.ThreadPoolExecutor(1)
for step in range(4):
    optimizer.zero_grad()
    net(torch.randn(5, 8)).pow(2).mean().backward()
    pool.submit(optimizer.step).result()
"""),
    "folds in threads, one after the other": (6, """
import threading
kept = []

def train():
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    kept.append((net, optimizer))
    for step in range(2):
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()

for fold in range(3):
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""),
    "checkpoints in a GAN": (3, """
from torch.utils.checkpoint import checkpoint
G, D = network(4), network(4)
of_G, of_D = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
for step in range(3):
    of_D.zero_grad()
    D(checkpoint(G, torch.randn(5, 4), use_reentrant=False).detach()).sum().backward()
    of_D.step()
    of_G.zero_grad()
    D(checkpoint(G, torch.randn(5, 4), use_reentrant=False)).sum().backward()
    of_G.step()
"""),
    "a forgotten train(), and another loop that trains on": (5, """
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()

train(2)
for _ in range(3):
    net.eval()(torch.randn(2, 8)).argmax(1)
train(1)
for step in range(2):
    optimizer.zero_grad()
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
"""),
    "an evaluation with gradients before the training and in it": (4, """
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def evaluate():
    net.eval()
    for _ in range(3):
        net(torch.randn(2, 8)).argmax(1)
    net.train()

evaluate()
for epoch in range(2):
    for step in range(2):
        optimizer.zero_grad()
        net(torch.randn(5, 8)).sum().backward()
        optimizer.step()
    evaluate()
"""),
    "one function that trains and evaluates": (3, """
net = network()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for number in range(6):
    net.train(number % 2 == 0)
    loss = net(torch.randn(5, 8)).sum()
    if net.training:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""),
    "several forwards of one call in a step, in evaluation mode": (3, """
net = network().eval()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    sum(net(torch.randn(5, 8)).sum() for _ in range(3)).backward()
    optimizer.step()
"""),
    "an evaluation without gradients before the training": (3, """
net = network()
with torch.no_grad():
    for _ in range(5):
        net.eval()(torch.randn(2, 8))
optimizer = torch.optim.SGD(net.train().parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    net(torch.randn(5, 8)).sum().backward()
    optimizer.step()
"""),
    "inference that records gradients nobody asks for": (4, """
net = network()
for _ in range(4):
    net(torch.randn(2, 8)).argmax(1)
"""),
    "an optimizer that is loaded and not used": (4, """
net = network().eval()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with torch.no_grad():
    for _ in range(4):
        net(torch.randn(2, 8))
"""),
}  # fmt: skip
