"""The shortest loop: everything at the top level, below no guard."""

import torch

x = torch.linspace(-1, 1, 256).unsqueeze(1)
y = x.pow(3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
for epoch in range(3):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(net(xb), yb)
        loss.backward()
        optimizer.step()
    scheduler.step()
    text = """
  epoch
"""
    print(text, epoch, loss.item())
torch.save(net.state_dict(), "plain.pt")
